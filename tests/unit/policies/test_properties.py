"""Laws that hold for any pools, advisories, settings and requests."""

import dataclasses
import random

from hypothesis import example, given
from hypothesis import strategies as st
from support.any_policy import DAY, advisory_of, known_advisories, pools, requests, settings, usable, wishes

from policies import Advisory, PolicySettings, PoolFacts, RequestFeatures, compile_policy, decide
from policies.advisory import unreadable
from policies.policy import with_pools

STANDARD_AND_CANARY = (
    PoolFacts(model="m", pool="one", engine_version="0.19.1"),
    PoolFacts(model="m", pool="two", method="eagle3", engine_version="0.32.0", canary_share=0.3),
)
OLD_ENGINES = Advisory(
    id="g",
    title="t",
    summary="s",
    status="confirmed",
    severity="high",
    affects=({"engine_version": "<0.32"},),
    unsafe=("any",),
    effects=dict.fromkeys(("speculative", "opt_out", "standard"), "forbid"),
)
TOOLS = RequestFeatures(model="m", tools=1)


def only_restricted(before, after):
    """Asserts that a decision allows no more than another one did, and prefers speculation no more than it had to.

    A canary is the last resort of the conversations that are not in its share. So a request may become speculative when
    what it went to before is forbidden, but never past a candidate without speculation that is still allowed.
    """
    ways_before, ways_after = ([(each.pool, each.speculative) for each in made.candidates] for made in (before, after))
    assert set(ways_after) <= set(ways_before)
    if after.speculative:
        passed = ways_before[: ways_before.index(ways_after[0])]
        assert not [way for way in passed if not way[1] and way in ways_after]


def settle(facts, advisories, chosen, request, preference):
    return decide(compile_policy(facts, advisories, usable(facts, chosen), DAY), request, preference, now_s=0)


@given(pools, known_advisories, settings, requests, wishes)
def test_a_decision_is_total_and_consistent(facts, advisories, chosen, request, preference):
    decision = settle(facts, advisories, chosen, request, preference)
    assert decision.refused == (not decision.candidates)
    assert decision.classes
    if decision.candidates:
        first = decision.candidates[0]
        assert (first.pool, first.speculative, first.opt_out) == (decision.pool, decision.speculative, decision.opt_out)
    assert len(set(decision.candidates)) == len(decision.candidates)
    for candidate in decision.candidates:
        pool = next(each for each in facts if each.pool == candidate.pool)
        assert not candidate.speculative or pool.speculative
        assert not candidate.opt_out or pool.opt_out


@given(pools, known_advisories, st.sampled_from(["g"]).flatmap(advisory_of), settings, requests, wishes)
@example(STANDARD_AND_CANARY, (), OLD_ENGINES, PolicySettings(), TOOLS, None)
def test_one_more_advisory_only_restricts(facts, advisories, another, chosen, request, preference):
    before = settle(facts, advisories, chosen, request, preference)
    only_restricted(before, settle(facts, (*advisories, another), chosen, request, preference))


def test_a_canary_serves_everybody_once_an_advisory_forbids_the_standard_pool():
    """Nothing is known against the canary, so that a refusal would help nobody."""
    before = settle(STANDARD_AND_CANARY, (), PolicySettings(), TOOLS, None)
    after = settle(STANDARD_AND_CANARY, (OLD_ENGINES,), PolicySettings(), TOOLS, None)
    assert [candidate.pool for candidate in before.candidates] == ["one", "two"]
    assert [candidate.pool for candidate in after.candidates] == ["two"]
    assert settle(STANDARD_AND_CANARY, (OLD_ENGINES,), PolicySettings(), TOOLS, False).refused


@given(pools, known_advisories, settings, requests)
def test_enable_speculative_false_is_never_speculated(facts, advisories, chosen, request):
    decision = settle(facts, advisories, chosen, request, False)
    assert not decision.speculative
    assert not any(candidate.speculative for candidate in decision.candidates)


@given(pools, known_advisories, settings, requests, st.sampled_from([None, False]))
def test_an_unreadable_advisory_forbids_all_speculation(facts, advisories, chosen, request, preference):
    broken = unreadable("z", "not YAML")
    assert not settle(facts, (*advisories, broken), chosen, request, preference).speculative


@given(pools, known_advisories, settings, requests, wishes, st.randoms(use_true_random=False))
def test_the_order_of_advisories_never_matters(facts, advisories, chosen, request, preference, shuffler: random.Random):
    shuffled = list(advisories)
    shuffler.shuffle(shuffled)
    first = compile_policy(facts, advisories, usable(facts, chosen), DAY)
    second = compile_policy(facts, shuffled, usable(facts, chosen), DAY)
    assert first.digest == second.digest
    assert decide(first, request, preference, 0) == decide(second, request, preference, 0)


@given(pools, known_advisories, settings, requests, wishes)
def test_knowing_less_of_a_pool_only_restricts(facts, advisories, chosen, request, preference):
    ignorant = tuple(dataclasses.replace(each, engine_version=None, hybrid=None) for each in facts)
    only_restricted(*(settle(each, advisories, chosen, request, preference) for each in (facts, ignorant)))


@given(pools, known_advisories, settings, requests, wishes)
def test_a_decision_remembered_is_the_decision_made(facts, advisories, chosen, request, preference):
    policy = compile_policy(facts, advisories, usable(facts, chosen), DAY)
    assert decide(policy, request, preference, 0) == decide(policy, request, preference, 0)


@given(pools, pools, known_advisories, settings, requests, wishes)
def test_a_hypothesis_decides_as_those_pools_would(was, would_be, advisories, chosen, request, preference):
    """Other models stay as they are."""
    other = dataclasses.replace(was[0], model="other")
    names = {each.pool for each in was} & {each.pool for each in would_be}
    kept = tuple(each for each in chosen.overrides if each.pool in names)
    chosen = dataclasses.replace(chosen, overrides=kept)
    policy = compile_policy((*was, other), advisories, chosen, DAY)
    decide(policy, request, preference, 0)
    compiled = compile_policy((*would_be, other), advisories, chosen, DAY)
    assert decide(with_pools(policy, "m", would_be), request, preference, 0) == decide(compiled, request, preference, 0)
