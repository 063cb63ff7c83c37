"""Bounds of rates: on their side of what was observed, whatever was observed, and rarely wrong."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve.quarantine.sequential import lower_bound, upper_bound

COUNTS = st.integers(0, 10_000)


@given(COUNTS, COUNTS, st.floats(1e-9, 0.5))
@example(25, 1, 0.00025)  # nearly all are bad: the bound is so near to 1 that it is 1
def test_bounds_enclose_the_observed_rate(bad: int, good: int, alpha: float) -> None:
    rate = bad / (bad + good) if bad + good else 0.5
    assert 0.0 <= lower_bound(bad, good, alpha) <= rate <= upper_bound(bad, good, alpha) <= 1.0


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.3])
def test_bounds_miss_the_true_rate_at_any_time_no_more_often_than_stated(rate: float) -> None:
    rng, missed, runs = Random(1), 0, 300
    for _ in range(runs):
        bad = good = 0
        for number in range(1, 401):
            if rng.random() < rate:
                bad += 1
            else:
                good += 1
            if number % 5 == 0 and not lower_bound(bad, good, 0.05) <= rate <= upper_bound(bad, good, 0.05):
                missed += 1
                break
    assert missed <= 0.05 * runs


def test_bounds_close_in_on_the_observed_rate() -> None:
    assert lower_bound(0, 100, 0.01) == 0.0
    assert upper_bound(5, 0, 0.01) == 1.0
    for size in (100, 1000, 10_000):
        low, high = lower_bound(size // 10, size - size // 10, 0.01), upper_bound(size // 10, size - size // 10, 0.01)
        assert low < 0.1 < high
        assert high - low < 3 / size**0.5
