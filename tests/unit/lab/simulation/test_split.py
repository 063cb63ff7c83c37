"""The split of requests among pools is the best one, as a search of all splits finds it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.simulation.split import Splits
from policies.step_times import PUBLISHED

_AFRESH = 64  # splits, after which the search starts afresh

ENGINES = st.tuples(st.sampled_from([0, 1, 3, 5]), st.integers(1, 8), st.integers(1, 300))


def rate_of(drafts: int, replicas: int, scale: int) -> Callable[[int], float]:
    """Steps per second of one request; `scale` requests take the place of one, so that few of them fill an engine."""
    return lambda requests: 1.0 / PUBLISHED.at(requests * scale / replicas, drafts)


def tokens_per_s(
    split: Sequence[Sequence[int]], rates: Sequence[Callable[[int], float]], lengths: Sequence[Sequence[float]]
) -> float:
    return sum(
        rate(sum(row[pool] for row in split))
        * sum(row[pool] * length[pool] for row, length in zip(split, lengths, strict=True))
        for pool, rate in enumerate(rates)
    )


def rows(count: int, length: Sequence[float]) -> Iterator[tuple[int, ...]]:
    for row in product(range(count + 1), repeat=len(length)):
        if sum(row) == count and all(each == 0 or allowed for each, allowed in zip(row, length, strict=True)):
            yield row


def best_of_all(
    present: Sequence[int], rates: Sequence[Callable[[int], float]], lengths: Sequence[Sequence[float]]
) -> float:
    all_rows = [list(rows(count, length)) for count, length in zip(present, lengths, strict=True)]
    return max(tokens_per_s(split, rates, lengths) for split in product(*all_rows))


def drafted(engines: list[tuple[int, int, int]], chances: list[float], forbidden: int | None) -> list[list[float]]:
    lengths = [[sum(chance**n for n in range(drafts + 1)) for drafts, *_ in engines] for chance in chances]
    if forbidden is not None:
        lengths[0][forbidden] = 0.0
    return lengths


@settings(max_examples=60, deadline=None)
@given(
    engines=st.lists(ENGINES, min_size=2, max_size=3),
    chances=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    forbidden=st.sampled_from([0, None]),
    presents=st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=4),
)
def test_no_other_split_of_few_requests_yields_more(
    engines: list[tuple[int, int, int]], chances: list[float], forbidden: int | None, presents: list[list[int]]
) -> None:
    rates, lengths = [rate_of(*each) for each in engines], drafted(engines, chances, forbidden)
    splits = Splits(rates)
    for present in presents:
        found = splits.best(present, lengths)
        assert [sum(row) for row in found] == present
        assert all(
            row[pool] == 0
            for row, each in zip(found, lengths, strict=True)
            for pool in range(len(rates))
            if not each[pool]
        )
        assert tokens_per_s(found, rates, lengths) >= (1 - 1e-9) * best_of_all(present, rates, lengths)


@settings(max_examples=30, deadline=None)
@given(
    engines=st.lists(ENGINES, min_size=2, max_size=2),
    chances=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    present=st.lists(st.integers(23, 40), min_size=2, max_size=2),
    followed=st.booleans(),
)
@example(engines=[(3, 1, 1), (5, 1, 3)], chances=[0.0, 1.0], present=[23, 29], followed=False)
@example(engines=[(1, 2, 5), (3, 6, 80)], chances=[0.0, 0.92], present=[32, 25], followed=False)
def test_a_split_of_many_requests_between_two_pools_is_the_best_one_once_the_search_starts_afresh(
    engines: list[tuple[int, int, int]], chances: list[float], present: list[int], followed: bool
) -> None:
    rates, lengths = [rate_of(*each) for each in engines], drafted(engines, chances, None)
    splits = Splits(rates)
    for more in range(_AFRESH if followed else 0):
        other = [count + more % 3 for count in present]
        assert [sum(row) for row in splits.best(other, lengths)] == other
    found = splits.best(present, lengths)
    assert [sum(row) for row in found] == present
    assert tokens_per_s(found, rates, lengths) >= (1 - 1e-9) * best_of_all(present, rates, lengths)
