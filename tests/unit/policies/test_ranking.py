"""Load re-orders what the policy allowed and never adds: speculation leaves full pools, prose first, tools last."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import Candidate, Decision, Reason
from policies.load_model import PUBLISHED
from policies.ranking import FULL, PoolLoad, Worth, may_rank, price_of_time, reordered, step_times, worth

SPECULATIVE = Candidate("speculative", opt_out=False, speculative=True)
STANDARD = Candidate("standard", opt_out=False, speculative=False)
SEATS = 256
TOOLS, PROSE = 3.7, 2.5


def loaded(drafts: int, lengths: dict[float, int], **engines: Any) -> PoolLoad:
    load = PoolLoad(step_times(PUBLISHED, drafts, SEATS), **engines)
    for length, count in lengths.items():
        for _ in range(count):
            load.begin(length)
    return load


def first(length: float, speculative: dict[float, int], standard: int, weight: float = 0.7) -> str:
    loads = loaded(3, speculative), loaded(0, {1.0: standard})
    price = price_of_time(loads, weight)
    worths = [worth(loads[0], length, price), worth(loads[1], 1.0, price)]
    order = reordered((SPECULATIVE, STANDARD), worths, 0.05) or [SPECULATIVE]
    return order[0].pool


@pytest.mark.parametrize("length", [TOOLS, PROSE])
@pytest.mark.parametrize("present", [0, 1, 8, 16])
def test_at_low_load_everything_speculates(length: float, present: int) -> None:
    assert first(length, {PROSE: present}, 0) == "speculative"


def test_as_load_grows_prose_leaves_the_drafter_and_tools_stay() -> None:
    present = {TOOLS: 40, PROSE: 60}
    assert first(PROSE, present, 150) == "standard"
    assert first(TOOLS, present, 150) == "speculative"


def test_a_drafter_that_accepts_nothing_is_left_at_any_load() -> None:
    assert first(1.05, {PROSE: 4}, 4) == "standard"


def test_a_full_pool_comes_last_whatever_it_accepts() -> None:
    assert first(TOOLS, {TOOLS: SEATS}, 200) == "standard"
    assert worth(loaded(3, {TOOLS: SEATS}), TOOLS, 0.0).value == FULL


def test_a_long_prefix_keeps_a_conversation_where_it_is_cached() -> None:
    loads = loaded(3, {TOOLS: 60, PROSE: 20}), loaded(0, {1.0: 60})
    price = price_of_time(loads, 0.7)
    elsewhere = worth(loads[1], 1.0, price, prefill_s=1.0)
    assert reordered((SPECULATIVE, STANDARD), [worth(loads[0], PROSE, price), elsewhere], 0.05) is None
    assert elsewhere.value < worth(loads[1], 1.0, price).value


def test_a_share_of_all_requests_stands_for_all_of_them() -> None:
    half = loaded(3, {PROSE: 40}, share=0.5)
    assert worth(half, PROSE, 10.0) == pytest.approx(worth(loaded(3, {PROSE: 80}), PROSE, 10.0))
    four = loaded(3, {PROSE: 320}, replicas=4)
    assert worth(four, PROSE, 10.0) == pytest.approx(worth(loaded(3, {PROSE: 80}), PROSE, 10.0))


def test_another_pool_must_be_worth_more_by_a_margin() -> None:
    worths = [Worth(0.50, 1, 1), Worth(0.54, 1, 1)]
    assert reordered((SPECULATIVE, STANDARD), worths, 0.05) is None
    assert reordered((SPECULATIVE, STANDARD), worths, 0.03) == [STANDARD, SPECULATIVE]


def decision(*candidates: Candidate, reasons: tuple[Reason, ...] = ()) -> Decision:
    head = candidates[0]
    return Decision("m", head.pool, head.speculative, False, False, (), reasons, False, candidates)


@pytest.mark.parametrize("reason", ["canary", "quarantine-probe", "reference-sample"])
def test_what_was_put_first_for_a_reason_of_its_own_stays_first(reason: str) -> None:
    assert may_rank(decision(SPECULATIVE, STANDARD))
    assert not may_rank(decision(SPECULATIVE, STANDARD, reasons=(Reason(reason, "inform", ""),)))
    assert not may_rank(decision(SPECULATIVE))


def test_a_candidate_under_suspicion_never_gets_before_one_that_is_not() -> None:
    suspected = dataclasses.replace(SPECULATIVE, pool="suspected", optimistic=True)
    worths = [Worth(0.1, 1, 1), Worth(0.9, 1, 1), Worth(0.5, 1, 1)]
    order = reordered((SPECULATIVE, suspected, STANDARD), worths, 0.05)
    assert order == [STANDARD, SPECULATIVE, suspected]


def test_a_canary_stays_behind_the_others() -> None:
    canary = dataclasses.replace(SPECULATIVE, pool="canary")
    worths = [Worth(0.1, 1, 1), Worth(0.2, 1, 1), Worth(0.9, 1, 1)]
    assert reordered((SPECULATIVE, STANDARD, canary), worths, 0.05, frozenset({"canary"})) == [
        STANDARD,
        SPECULATIVE,
        canary,
    ]


candidates = st.lists(
    st.builds(Candidate, st.sampled_from("abcd"), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=5,
    unique=True,
)
values = st.floats(allow_nan=False)


@given(allowed=candidates, data=st.data(), margin=st.floats(0, 1), last=st.frozensets(st.sampled_from("abcd")))
def test_an_order_holds_exactly_what_was_allowed(
    allowed: list[Candidate], data: st.DataObject, margin: float, last: frozenset[str]
) -> None:
    worths = [Worth(data.draw(values), 1.0, 1.0) for _ in allowed]
    order = reordered(allowed, worths, margin, last)
    if order is not None:
        assert sorted(order, key=repr) == sorted(allowed, key=repr)
        assert order[0] != allowed[0]
        assert not order[0].optimistic or allowed[0].optimistic


@given(events=st.lists(st.floats(1, 9), max_size=60), drafts=st.integers(0, 5), length=st.floats(1, 9))
def test_any_load_has_a_worth_and_ends_at_nothing(events: list[float], drafts: int, length: float) -> None:
    load = PoolLoad(step_times(PUBLISHED, drafts, 40), replicas=2, share=0.5)
    for each in events:
        load.begin(each)
        found = worth(load, length, price_of_time([load], 0.7), 0.1)
        assert found.value == FULL if len(events) > 40 and load.per_engine >= 40 else found.own > 0
    for each in events:
        load.end(each)
    assert (load.requests, load.lengths, load.rate) == (0, 0.0, 0.0)
