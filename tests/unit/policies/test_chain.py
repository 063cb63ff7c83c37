"""The chain of a decision: each stage says why, and their order matters only where the table says so."""

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_policy import DAY, known_advisories, pools, requests, settings, usable, wishes

from policies import (
    Advisory,
    Cell,
    Decision,
    Draw,
    LoadOrder,
    Override,
    Policy,
    PolicySettings,
    PoolFacts,
    QuarantineReason,
    Reason,
    RequestFeatures,
    TrialTerms,
    choose,
    compile_policy,
    decide,
    quarantine,
)
from policies.acceptance import Acceptance, AnswerLength
from policies.decide import FOR_A_CLASS, FOR_A_REQUEST, as_decisions, slot_order
from policies.policy import RequestCase, Shortlist, shortlisted
from policies.ranking import PoolLoad, RankedOption, ranked
from policies.step_times import PUBLISHED, step_times

TOOLS = RequestFeatures("m", tools=1, tool_choice="auto")
FAST = Cell("m", "speculative", True, "tools_auto")
SAFE = Cell("m", "standard", False, "tools_auto")
BROKEN = QuarantineReason("9 of 10 answers bad", "measured n=10")

verdicts = st.dictionaries(
    st.tuples(st.sampled_from(["one", "two", "three"]), st.booleans()),
    st.sampled_from([BROKEN, QuarantineReason("incident 17", "operator")]),
)
draws = st.none() | st.builds(
    Draw,
    st.builds(
        TrialTerms,
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from([0.0, 0.02, 0.3]),
        st.sampled_from([1.0, 0.98, 0.5]),
        st.booleans(),
    ),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
crowds = st.lists(st.integers(0, 60), min_size=6, max_size=6)


def policy_of(facts: Sequence[PoolFacts], advisories: Sequence[Advisory], chosen: PolicySettings) -> Policy:
    return compile_policy(facts, advisories, usable(facts, chosen), DAY)


def with_verdicts(policy: Policy, request: RequestFeatures, drawn: dict[tuple[str, bool], QuarantineReason]) -> Policy:
    cells = {Cell("m", *ways, request.request_class): verdict for ways, verdict in drawn.items()}
    return quarantine(policy, cells)


def order_of(decision: Decision, crowd: list[int]) -> LoadOrder | None:
    """The order by load when so many requests are in the candidates' pools."""
    if not decision.tiers:
        return None
    options = []
    for candidate, present in zip(decision.candidates, crowd, strict=False):
        drafts, length = (3, 2.5) if candidate.speculative else (0, 1.0)
        load = PoolLoad(step_times(PUBLISHED, drafts, 50))
        for _ in range(present):
            load.begin(length)
        options.append(RankedOption(candidate.pool, load, Acceptance(length), AnswerLength()))
    places = ranked(options, decision.tiers, (0, "", 0))
    return None if places is None else LoadOrder(places, Reason("load", "inform", "r", "operator"))


def ways(shortlist: Shortlist) -> set[tuple[str, str]]:
    return {(each.option.pool, each.option.mode) for each in shortlist.contenders if each.allowed}


@given(pools, known_advisories, settings, requests, wishes, verdicts)
def test_what_a_stage_takes_out_it_gives_a_reason_for(facts, advisories, chosen, request, preference, drawn):
    policy = with_verdicts(policy_of(facts, advisories, chosen), request, drawn)
    case = RequestCase(policy, request.model, request.mask, preference)
    ids = {advisory.id for advisory in advisories}
    stages = [stage.applied for stage in FOR_A_CLASS]
    for number, stage in enumerate(FOR_A_CLASS):
        before, after = (shortlisted(case, stages[:end]) for end in (number, number + 1))
        left = after.reasons - before.reasons
        assert ways(after) <= ways(before), "a stage let something in again"
        assert before.reasons <= after.reasons, "a stage took a reason away"
        assert {reason.advisory for reason in left} <= stage.reasons | (ids if "*" in stage.reasons else set())
        if ways(after) < ways(before):
            assert {reason.effect for reason in left} & {"forbid", "pin"}


@given(pools, known_advisories, settings, requests, wishes, verdicts)
def test_the_order_of_stages_matters_only_where_it_is_said(facts, advisories, chosen, request, preference, drawn):
    policy = with_verdicts(policy_of(facts, advisories, chosen), request, drawn)
    case = RequestCase(policy, request.model, request.mask, preference)
    outcomes = [
        as_decisions(case, shortlisted(case, [stage.applied for stage in order]))
        for order in itertools.permutations(FOR_A_CLASS)
        if all(stage.after <= {earlier.name for earlier in order[:n]} for n, stage in enumerate(order))
    ]
    assert len(outcomes) > 1
    assert all(outcome == outcomes[0] for outcome in outcomes)


PINNED = PolicySettings(overrides=(Override("pin", "mine", pool="standard"),))
# A stage, one that it must follow, and where that shows: the caller's preference, settings, a cell in quarantine.
DEPENDENCIES = [
    ("preference", "pin", False, PINNED, None),
    ("forbid", "pin", None, PINNED, None),
    ("quarantine", "pin", None, PINNED, SAFE),
    ("quarantine", "preference", False, PolicySettings(), SAFE),
    ("quarantine", "forbid", None, PolicySettings(), SAFE),
]


@pytest.mark.parametrize(("late", "early", "preference", "chosen", "cell"), DEPENDENCIES)
def test_where_it_is_said_the_order_matters(pools, advisory, late, early, preference, chosen, cell):
    """Quarantine, for one, leaves the last pool in; before the other stages it could not know which that is."""
    assert early in next(stage for stage in FOR_A_CLASS if stage.name == late).after
    policy = compile_policy(pools(), (advisory(),) if "forbid" in (late, early) else (), chosen)
    case = RequestCase(quarantine(policy, {cell: BROKEN} if cell else {}), "m", TOOLS.mask, preference)
    names = [stage.name for stage in FOR_A_CLASS if stage.name not in (late, early)]
    stages = {stage.name: stage.applied for stage in FOR_A_CLASS}
    first, last = (
        shortlisted(case, [stages[name] for name in (*order, *names)]) for order in ((early, late), (late, early))
    )
    assert (ways(first), first.reasons) != (ways(last), last.reasons)


def test_every_dependency_of_a_class_stage_has_its_example():
    said = {(stage.name, early) for stage in FOR_A_CLASS for early in stage.after}
    assert {(late, early) for late, early, *_ in DEPENDENCIES} == said


@pytest.mark.parametrize("stages", [FOR_A_CLASS, FOR_A_REQUEST], ids=["for a class", "for a request"])
def test_the_tables_are_in_an_order_that_they_allow(stages):
    names = [stage.name for stage in stages]
    assert len(set(names)) == len(names)
    for number, stage in enumerate(stages):
        assert stage.after <= set(names[:number])
        assert stage.reasons


@given(pools, known_advisories, settings, requests, wishes, verdicts, crowds, draws)
def test_nothing_forbidden_is_ever_chosen_and_all_that_is_not_chosen_has_a_reason(
    facts, advisories, chosen, request, preference, drawn, crowd, draw
):
    sound = policy_of(facts, advisories, chosen)
    policy = with_verdicts(sound, request, drawn)
    permitted = decide(sound, request, preference, 0).candidates
    decision = decide(policy, request, preference, 0)
    found = choose(decision, order_of(decision, crowd), draw)
    assert set(found.candidates) <= set(permitted)
    assert set(decision.candidates) <= set(found.candidates)
    probed = set(found.candidates) - set(decision.candidates)
    if probed:
        assert found.trial is not None
        assert probed == {found.trial.subject} == {found.candidates[0]}
        assert policy.quarantined[found.trial.cell] == BROKEN, "what an operator took out is never probed"
    assert len(set(found.candidates)) == len(found.candidates)
    assert len(found.tiers) in (0, len(found.candidates))
    options = policy.models[request.model].options if request.model in policy.models else ()
    if len(found.candidates) < len(options):
        assert {reason.effect for reason in found.reasons} & {"forbid", "pin"}


@given(pools, known_advisories, settings, requests, wishes, verdicts, crowds, draws)
def test_each_stage_for_a_request_says_why_another_pool_is_first(
    facts, advisories, chosen, request, preference, drawn, crowd, draw
):
    policy = with_verdicts(policy_of(facts, advisories, chosen), request, drawn)
    decision = decide(policy, request, preference, 0)
    order = order_of(decision, crowd)
    for stage in FOR_A_REQUEST:
        after = stage.applied(decision, order, draw)
        left = set(after.reasons) - set(decision.reasons)
        assert set(decision.reasons) <= set(after.reasons)
        assert {reason.advisory for reason in left} <= stage.reasons
        if after.candidates != decision.candidates:
            assert after.tiers == (), "the order is settled"
        if after.candidates[:1] != decision.candidates[:1]:
            assert left
            assert not preference, "a caller's wish was overruled"
        decision = after
    assert decision == choose(decide(policy, request, preference, 0), order, draw)


@given(pools, known_advisories, settings, requests, verdicts, crowds, draws)
def test_a_trial_compares_two_pools_that_both_may_answer(facts, advisories, chosen, request, drawn, crowd, draw):
    policy = with_verdicts(policy_of(facts, advisories, chosen), request, drawn)
    decision = decide(policy, request, None, 0)
    found = choose(decision, order_of(decision, crowd), draw)
    if found.trial is None:
        return
    assert draw is not None
    assert found.trial.first == found.candidates[0]
    assert found.trial.reference in decision.candidates
    assert (found.trial.reference.pool, found.trial.reference.speculative) == (draw.terms.reference, False)
    assert found.trial.other in found.candidates or found.trial.subject in {each[0] for each in decision.suspended}
    assert found.trial.subject != found.trial.reference
    assert set(found.classes) & {"tools_auto", "tools_forced", "json_object", "json_schema"}


@pytest.mark.parametrize("out", [1, 2, 3])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5])
def test_chance_gives_each_suspended_pool_its_share_of_probes_and_the_reference_as_many(out, share):
    """Also where the shares of all of them add up to more than there are requests."""
    names = "abc"[:out]
    facts = [PoolFacts(model="m", pool=name, method="eagle3") for name in names]
    policy = compile_policy((*facts, PoolFacts(model="m", pool="standard")), (), PolicySettings())
    cells = {Cell("m", name, True, "tools_auto"): BROKEN for name in names}
    decision = decide(quarantine(policy, cells), TOOLS, None)
    terms = TrialTerms("standard", share, 1.0, True)
    drawn = [choose(decision, draw=Draw(terms, (n + 0.5) / 3000, 0.5)).trial for n in range(3000)]
    found = Counter((trial.subject.pool, trial.first.pool) for trial in drawn if trial)
    granted = 3000 * min(share, 1 / (2 * out))
    assert found == {(name, first): granted for name in names for first in (name, "standard")}


PROBE = Draw(TrialTerms("standard", 0.5, 0.5, True), probe=0.0, sample=0.9)
SAMPLE = Draw(TrialTerms("standard", 0.0, 0.5, True), probe=0.0, sample=0.0)


@pytest.mark.parametrize(
    ("request_", "draw", "reason"),
    [
        (TOOLS, PROBE, "quarantine-probe"),
        (TOOLS._replace(preference=True), PROBE, ""),
        (TOOLS, SAMPLE, "reference-sample"),
        (TOOLS._replace(preference=True), SAMPLE, ""),
        (RequestFeatures("m"), SAMPLE, ""),
    ],
    ids=["a probe", "a probe, speculation asked for", "a sample", "a sample, speculation asked for", "free text"],
)
def test_a_request_is_a_trial_if_both_pools_may_answer_it_and_the_answer_is_checked(pools, request_, draw, reason):
    cells = {FAST: BROKEN} if draw is PROBE else {}
    decision = decide(quarantine(compile_policy(pools(), (), PolicySettings()), cells), request_, request_.preference)
    found = choose(decision, draw=draw)
    assert (found.trial is not None) == bool(reason)
    assert {each.advisory for each in found.reasons} - {each.advisory for each in decision.reasons} == {
        *filter(None, [reason])
    }


def test_what_an_operator_took_out_is_never_probed(pools):
    cells = {FAST: QuarantineReason("incident 17", "operator")}
    decision = decide(quarantine(compile_policy(pools(), (), PolicySettings()), cells), TOOLS, None)
    assert choose(decision, draw=PROBE) == decision


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_pools_are_asked_for_a_slot_as_decided_but_full_ones_last(full):
    order = slot_order(full)
    assert sorted(order) == list(range(len(full)))
    assert list(order) == [n for n, each in enumerate(full) if not each] + [n for n, each in enumerate(full) if each]


def test_load_moves_neither_a_canary_nor_a_pool_under_suspicion_to_the_front(pools, advisory):
    first, standard = pools()
    suspicious = PoolFacts(model="m", pool="suspicious", method="ngram", engine="vllm", engine_version="0.32.0")
    suspected = advisory(status="suspected", affects=({"method": "ngram"},))
    policy = compile_policy((first, suspicious, standard), (suspected,), PolicySettings(optimistic=True, guard=True))
    decision = decide(policy, TOOLS, None)
    assert dict(zip([each.pool for each in decision.candidates], decision.tiers, strict=True)) == {
        "speculative": 0, "suspicious": 2, "standard": 0,
    }  # fmt: skip
    canary = PoolFacts(model="m", pool="canary", method="eagle3", drafter="new", canary_share=0.3)
    policy = compile_policy((first, canary, standard), (), PolicySettings())
    decisions = [decide(policy, TOOLS._replace(conversation_key=str(number)), None) for number in range(50)]
    assert {(each.pool, each.tiers) for each in decisions} == {("speculative", (0, 0, 1)), ("canary", ())}


def test_nothing_is_left_to_load_where_the_caller_or_the_operator_has_settled_the_order(pools):
    policy = compile_policy(pools(), (), PolicySettings())
    assert decide(policy, TOOLS, None).tiers == (0, 0)
    assert decide(policy, TOOLS, True).tiers == ()
    pinned = PolicySettings(overrides=(Override("pin", "mine", pool="standard"),))
    assert decide(compile_policy(pools(), (), pinned), TOOLS, None).tiers == ()
