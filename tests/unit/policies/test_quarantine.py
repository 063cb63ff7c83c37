"""Quarantine in decisions: what is out is not chosen, nothing is refused for it, and every reason says so."""

import dataclasses
import itertools
from collections import Counter
from datetime import date
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    Cell,
    Draw,
    Override,
    PolicyError,
    PolicySettings,
    QuarantineReason,
    RequestFeatures,
    Trial,
    TrialTerms,
    choose,
    compile_policy,
    decide,
    explain,
    is_suspected,
    mask_of_class,
    quarantine,
    reference_pool,
)

TOOLS = RequestFeatures("m", tools=1, tool_choice="auto")
FAST = Cell("m", "speculative", True, "tools_auto")
SAME = Cell("m", "speculative", False, "tools_auto")
SAFE = Cell("m", "standard", False, "tools_auto")
BROKEN = QuarantineReason("9 of 10 answers bad", "measured n=10")


def compiled(facts, *out, advisories=(), today=None, **settings):
    policy = compile_policy(facts, advisories, PolicySettings(**settings), today)
    return quarantine(policy, dict.fromkeys(out, BROKEN))


def test_a_cell_that_is_out_is_not_chosen_and_the_reason_is_given(pools):
    decision = decide(compiled(pools(), FAST), TOOLS, None)
    assert [each.pool for each in decision.candidates] == ["standard"]
    assert [(each.advisory, each.effect, each.basis) for each in decision.reasons] == [
        ("quarantine", "forbid", "measured n=10")
    ]
    assert "9 of 10" in decision.reasons[0].summary


@pytest.mark.parametrize(
    "change", [{"tool_choice": "required"}, {"strict_tools": True}, {"thinking": True}, {"tools": 0}]
)
def test_other_classes_are_not_touched(pools, change):
    decision = decide(compiled(pools(), FAST), TOOLS._replace(**change), None)
    assert (decision.pool, decision.reasons) == ("speculative", ())


@pytest.mark.parametrize("change", [{"stream": True}, {"stop": True}, {"tool_history": True}, {"n": 2}])
def test_how_an_answer_is_sent_makes_no_class_of_its_own(pools, change):
    assert decide(compiled(pools(), FAST), TOOLS._replace(**change), None).pool == "standard"


def test_each_way_of_a_pool_is_judged_by_itself(pools):
    facts = pools(opt_out=True)
    decision = decide(compiled(facts, FAST), TOOLS, None)
    assert (decision.pool, decision.opt_out) == ("speculative", True)
    assert decide(compiled(facts, FAST, SAME), TOOLS, None).pool == "standard"


def test_a_wish_does_not_outweigh_it_even_in_advise_mode(pools):
    assert not decide(compiled(pools(), FAST, mode="advise"), TOOLS, True).speculative


def test_nothing_is_refused_for_it_the_least_speculative_way_stays(pools):
    decision = decide(compiled(pools(), FAST, SAFE), TOOLS, None)
    assert [each.pool for each in decision.candidates] == ["standard"]
    assert {each.effect for each in decision.reasons} == {"forbid", "warn"}
    assert decide(compiled(pools(standard=False), FAST), TOOLS, None).speculative


def test_a_pin_to_a_pool_in_quarantine_keeps_it(pools):
    pin = Override("pin", "mine", pool="speculative")
    assert decide(compiled(pools(), FAST, overrides=(pin,)), TOOLS, None).pool == "speculative"


def test_what_is_forbidden_stays_forbidden(pools, advisory):
    facts = pools(standard=False)
    assert decide(compiled(facts, advisories=(advisory(),)), TOOLS, None).refused
    assert decide(compiled(facts, FAST, advisories=(advisory(),)), TOOLS, None).refused


def test_it_holds_beyond_the_day_on_which_an_override_ends(pools):
    waiver = Override("forbid", "x", pool="standard", classes=("plain",), expires=date(2026, 12, 1))
    policy = compiled(pools(), FAST, overrides=(waiver,), today=date(2026, 11, 21))
    assert decide(policy, TOOLS, None, now_s=4e9).pool == "standard"


def test_explain_tells_it_and_what_would_change_it(pools):
    policy = compiled(pools(), FAST)
    reply = explain(policy, TOOLS, decide(policy, TOOLS, None))
    assert reply["evidence"] == {"quarantine": "measured n=10"}
    assert [each["change"] for each in reply["would_change"]] == ["wait until the quarantine is lifted, or lift it"]
    assert policy.to_dict()["quarantined"] == [{**FAST._asdict(), "why": BROKEN.why}]


def test_a_probe_leads_although_it_is_not_allowed_and_says_why(pools):
    policy = compiled(pools(), FAST)
    before = decide(policy, TOOLS, None)
    (fast, safe) = decide(quarantine(policy, {}), TOOLS, None).candidates
    probe = choose(before, draw=Draw(TrialTerms("standard", 0.1, 0.98, True), probe=0.05, sample=0.9))
    assert (probe.pool, probe.speculative, probe.candidates) == ("speculative", True, (fast, safe))
    assert probe.reasons[:-1] == before.reasons
    assert (probe.reasons[-1].advisory, probe.reasons[-1].basis) == ("quarantine-probe", "measured n=10")
    assert probe.trial == Trial(FAST, fast, safe, 0.5, fast, paired=False)


@given(
    out=st.sampled_from([None, "measured n=10", "operator", "echo"]),
    probe_share=st.sampled_from([0.0, 0.1]),
    own_share=st.sampled_from([1.0, 0.9]),
    reference=st.sampled_from(["standard", "speculative", "none of them"]),
    request_class=st.sampled_from(["tools_auto", "plain"]),
    opt_out=st.booleans(),
)
def test_what_chance_may_make_of_a_request_is_foretold_with_its_share_and_nothing_else(
    pools, out, probe_share, own_share, reference, request_class, opt_out
):
    cells = {FAST._replace(request_class=request_class): QuarantineReason("bad", out)} if out else {}
    policy = quarantine(compile_policy(pools(opt_out=opt_out), (), PolicySettings()), cells)
    decision = decide(policy, TOOLS if request_class == "tools_auto" else RequestFeatures("m"), None)
    terms = TrialTerms(reference, probe_share, own_share, True)
    left: Counter[tuple[str, str]] = Counter()
    for probe, sample in itertools.product(range(20), range(20)):
        drawn = choose(decision, draw=Draw(terms, probe / 20, sample / 20))
        left.update((each.advisory, each.basis) for each in drawn.reasons if each not in decision.reasons)
    before, after = (explain(policy, TOOLS, decision, each) for each in (None, terms))
    told = [each for each in after["reasons"] if each not in before["reasons"]]
    assert {(each["advisory"], after["evidence"][each["advisory"]]) for each in told} == left.keys()
    for each in told:
        share = left[each["advisory"], after["evidence"][each["advisory"]]] / 400
        assert each["effect"] == "inform"
        assert each["summary"].startswith(f"{share:.3g} of such requests are ")


def test_two_pools_in_quarantine_keep_their_evidence(pools):
    policy = compile_policy(pools(), (), PolicySettings())
    policy = quarantine(policy, {FAST: BROKEN, SAFE: QuarantineReason("incident 17", "operator")})
    evidence = explain(policy, TOOLS, decide(policy, TOOLS, None))["evidence"]
    assert set(evidence["quarantine"].split("; ")) == {"measured n=10", "operator"}


def test_the_reference_is_the_first_standard_pool_else_the_opt_out(pools):
    assert reference_pool(compiled(pools(opt_out=True)), "m") == "standard"
    assert reference_pool(compiled(pools(opt_out=True, standard=False)), "m") == "speculative"
    assert reference_pool(compiled(pools(standard=False)), "m") is None
    first, second = pools()[1], dataclasses.replace(pools()[1], pool="another")
    assert reference_pool(compiled((first, second)), "m") == "standard"


def test_an_advisory_makes_a_cell_suspect_whatever_its_force(pools, advisory):
    facts = pools()
    for status in ("confirmed", "suspected"):
        assert is_suspected(compiled(facts, advisories=(advisory(status=status),)), FAST)
    policy = compiled(facts, advisories=(advisory(unsafe=("tools+strict",)),))
    assert not is_suspected(policy, FAST)
    assert is_suspected(policy, FAST._replace(request_class="tools_auto+strict"))
    assert not is_suspected(policy, SAFE)
    assert not is_suspected(policy, FAST._replace(model="other"))


@given(st.sets(st.sampled_from([FAST, SAME, SAFE])), st.booleans(), st.booleans(), st.sampled_from([None, True, False]))
def test_it_refuses_nothing_and_allows_nothing_new(pools, out, opt_out, standard, preference):
    facts = pools(opt_out=opt_out, standard=standard)
    before, after = decide(compiled(facts), TOOLS, preference), decide(compiled(facts, *out), TOOLS, preference)
    assert after.refused == before.refused
    assert set(after.candidates) <= set(before.candidates)


@given(
    st.builds(
        partial(RequestFeatures, "m"),
        tools=st.integers(0, 1),
        tool_choice=st.sampled_from(["auto", "required", "none"]),
        strict_tools=st.booleans(),
        response_format=st.sampled_from([None, "json_object", "json_schema"]),
        thinking=st.booleans(),
        stream=st.booleans(),
    )
)
def test_a_requests_class_reads_back_unless_nothing_is_checked(request_):
    name = request_.request_class
    if name.startswith("plain"):
        with pytest.raises(PolicyError, match="not a class whose answers are checked"):
            mask_of_class(name)
    else:
        assert RequestFeatures.mask.fget(request_) & mask_of_class(name) == mask_of_class(name)


@pytest.mark.parametrize("name", ["", "nope", "tools", "strict", "strict+tools_auto", "tools_auto+stream"])
def test_a_class_that_is_none_is_refused(name):
    with pytest.raises(PolicyError):
        mask_of_class(name)
