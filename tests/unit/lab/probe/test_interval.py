import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.probe.interval import wilson


@pytest.mark.parametrize(
    ("clean", "n", "low", "high"), [(16, 30, 0.361, 0.698), (30, 30, 0.886, 1.0), (0, 0, 0.0, 1.0)]
)
def test_known_intervals(clean, n, low, high):
    assert wilson(clean, n) == pytest.approx((low, high), abs=0.0006)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_rate_lies_inside_and_more_trials_narrow(counts):
    clean, n = counts
    low, high = wilson(clean, n)
    assert 0 <= low <= clean / n + 1e-12
    assert clean / n - 1e-12 <= high <= 1
    closer = wilson(clean * 4, n * 4)
    assert closer[1] - closer[0] < high - low
