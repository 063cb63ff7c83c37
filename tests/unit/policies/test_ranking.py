"""Load re-orders what the policy allowed and never adds: speculation leaves full pools, prose first, tools last."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.acceptance import Acceptance, AnswerLength
from policies.decision import Candidate
from policies.ranking import FULL, MARGIN, PoolLoad, Prompt, RankedOption, price_of_time, ranked, value
from policies.step_times import PUBLISHED, step_times

SPECULATIVE = Candidate("speculative", opt_out=False, speculative=True)
STANDARD = Candidate("standard", opt_out=False, speculative=False)
SEATS = 256
TOOLS, PROSE = 3.7, 2.5
SHORT: Prompt = (0, "", 0)


def loaded(drafts: int, lengths: dict[float, int], **engines: Any) -> PoolLoad:
    load = PoolLoad(step_times(PUBLISHED, drafts, SEATS), **engines)
    for length, count in lengths.items():
        for _ in range(count):
            load.begin(length)
    return load


def option(candidate: Candidate, load: PoolLoad, length: float) -> RankedOption:
    return RankedOption(candidate.pool, load, Acceptance(length), AnswerLength())


def order(*choices: tuple[Candidate, PoolLoad, float], tiers: str = "000", prompt: Prompt = SHORT) -> list[str]:
    """The pools of the choices, best first; each is a candidate, its pool's load, and the request's tokens per step."""
    options = [option(*choice) for choice in choices]
    numbers = ranked(options, [int(tier) for tier in tiers[: len(options)]], prompt)
    return [options[number].pool for number in (range(len(options)) if numbers is None else numbers)]


def first(length: float, speculative: dict[float, int], standard: int) -> str:
    loads = loaded(3, speculative), loaded(0, {1.0: standard})
    return order((SPECULATIVE, loads[0], length), (STANDARD, loads[1], 1.0))[0]


@pytest.mark.parametrize("length", [TOOLS, PROSE])
@pytest.mark.parametrize("present", [0, 1, 8, 16])
def test_at_low_load_everything_speculates(length: float, present: int) -> None:
    assert first(length, {PROSE: present}, 0) == "speculative"


@pytest.mark.parametrize("length", [1.2, 1.5, 1.8, 2.0, 2.5, 3.0, TOOLS])
@pytest.mark.parametrize("taken", [0.01, 0.02, 0.04])
@pytest.mark.parametrize(("engines", "idle"), [(1, 1), (1, 7), (2, 4), (7, 1)])
def test_where_hardly_anybody_is_nobody_is_made_slower_for_the_others(
    engines: int, idle: int, taken: float, length: float
) -> None:
    """At 20 of 512 requests some went to a plain engine, and were a third slower there for a gain of 0.1 %."""
    here = loaded(3, {PROSE: round(taken * SEATS * (engines + idle))}, replicas=engines)
    choices = (SPECULATIVE, here, length), (STANDARD, loaded(0, {}, replicas=idle), 1.0)
    own = {choice[0].pool: option(*choice).own for choice in choices}
    assert own[order(*choices)[0]] > 0.9 * own["speculative"]


def test_as_load_grows_prose_leaves_the_drafter_and_tools_stay() -> None:
    present = {TOOLS: 40, PROSE: 60}
    assert first(PROSE, present, 150) == "standard"
    assert first(TOOLS, present, 150) == "speculative"


def test_a_drafter_that_accepts_nothing_is_left_at_any_load() -> None:
    assert first(1.05, {PROSE: 4}, 4) == "standard"


def test_a_full_pool_comes_last_whatever_it_accepts() -> None:
    assert first(TOOLS, {TOOLS: SEATS}, 200) == "standard"
    alone = option(SPECULATIVE, loaded(3, {TOOLS: SEATS}), TOOLS)
    assert value(alone, SHORT, 0.0) == FULL
    assert (alone.own, alone.added) == (0.0, 0.0)


def test_pools_that_are_all_full_keep_their_order() -> None:
    assert first(TOOLS, {TOOLS: SEATS}, SEATS) == "speculative"


def test_a_long_prefix_keeps_a_conversation_where_it_is_cached() -> None:
    loads = loaded(3, {TOOLS: 60, PROSE: 20}), loaded(0, {1.0: 10})
    choices = (SPECULATIVE, loads[0], PROSE), (STANDARD, loads[1], 1.0)
    assert order(*choices, prompt=(20_100, "speculative", 20_000))[0] == "speculative"
    assert order(*choices, prompt=(20_100, "standard", 20_000))[0] == "standard"
    assert order(*choices)[0] == "standard"


def test_a_prompt_shorter_than_what_is_cached_costs_nothing() -> None:
    alone = option(STANDARD, loaded(0, {1.0: 8}), 1.0)
    assert value(alone, (100, "standard", 400), 50.0) == value(alone, SHORT, 50.0)


def test_a_share_of_all_requests_stands_for_all_of_them() -> None:
    def found(load: PoolLoad) -> tuple[float, float, float]:
        alone = option(SPECULATIVE, load, PROSE)
        return value(alone, SHORT, 10.0), alone.own, alone.added

    assert found(loaded(3, {PROSE: 40}, share=0.5)) == pytest.approx(found(loaded(3, {PROSE: 80})))
    assert found(loaded(3, {PROSE: 320}, replicas=4)) == pytest.approx(found(loaded(3, {PROSE: 80})))


@given(requests=st.integers(0, SEATS - 1), length=st.floats(1, 4), share=st.floats(0.9, 1.1))
def test_another_pool_must_be_worth_more_by_a_margin(requests: int, length: float, share: float) -> None:
    here, there = loaded(3, {PROSE: requests}), loaded(3, {PROSE: round(requests * share)})
    options = [option(SPECULATIVE, here, length), option(replace(SPECULATIVE, pool="other"), there, length)]
    price = price_of_time(options)
    gain = value(options[1], SHORT, price) - value(options[0], SHORT, price)
    assert (ranked(options, (0, 0), SHORT) == (1, 0)) == (gain > MARGIN)


def test_what_is_in_a_later_tier_stays_behind_however_full_the_others_are() -> None:
    other = replace(SPECULATIVE, pool="other")
    full, idle, busy = loaded(3, {PROSE: SEATS}), loaded(3, {}), loaded(0, {1.0: 100})
    choices = (SPECULATIVE, full, PROSE), (other, idle, PROSE), (STANDARD, busy, 1.0)
    assert order(*choices) == ["other", "standard", "speculative"]
    assert order(*choices, tiers="010") == ["standard", "speculative", "other"]
    assert order(*choices[:2], tiers="02") == ["speculative", "other"]


candidates = st.lists(
    st.builds(Candidate, st.sampled_from("abcd"), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=5,
    unique=True,
)
loads = st.builds(loaded, st.integers(0, 5), st.dictionaries(st.floats(1, 6), st.integers(0, 300), max_size=2))
prompts = st.tuples(st.integers(0, 10**6), st.sampled_from(["", *"abcd"]), st.integers(0, 10**6))


@given(allowed=candidates, data=st.data(), prompt=prompts)
def test_an_order_holds_exactly_what_was_allowed(allowed: list[Candidate], data: st.DataObject, prompt: Prompt) -> None:
    options = [option(each, data.draw(loads), data.draw(st.floats(1, 6))) for each in allowed]
    tiers = [0, *(data.draw(st.integers(0, 3)) for _ in allowed[1:])]
    found = ranked(options, tiers, prompt)
    if found is not None:
        assert sorted(found) == list(range(len(allowed)))
        assert found[0] != 0
        assert [tiers[number] for number in found] == sorted(tiers)


@given(events=st.lists(st.floats(1, 9), max_size=60), drafts=st.integers(0, 5), length=st.floats(1, 9))
def test_any_load_has_a_worth_and_ends_at_nothing(events: list[float], drafts: int, length: float) -> None:
    load = PoolLoad(step_times(PUBLISHED, drafts, 40), replicas=2, share=0.5)
    alone = option(STANDARD, load, length)
    for each in events:
        load.begin(each)
        assert load.full == (load.per_engine >= 40)
        assert (value(alone, (2000, "", 0), price_of_time([alone])) == FULL) == load.full
        assert (alone.own > 0) != load.full
    for each in events:
        load.end(each)
    assert (load.requests, load.lengths, load.rate, load.slowed) == (0, 0.0, 0.0, 0.0)
