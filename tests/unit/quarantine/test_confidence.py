"""Bounds of rates: on their side of what was observed, whatever was observed."""

from hypothesis import example, given
from hypothesis import strategies as st

from serve.quarantine.confidence import SUSPECTED, UNSUSPECTED, Prior, lower_bound, upper_bound

COUNTS = st.integers(0, 10_000)


@given(COUNTS, COUNTS, st.floats(1e-9, 0.5), st.sampled_from([SUSPECTED, UNSUSPECTED]))
@example(25, 1, 0.00025, UNSUSPECTED)  # nearly all are bad: the bound is so near to 1 that it is 1
def test_bounds_enclose_the_observed_rate(bad: int, good: int, alpha: float, prior: Prior) -> None:
    rate = bad / (bad + good) if bad + good else 0.5
    assert 0.0 <= lower_bound(bad, good, alpha, prior) <= rate <= upper_bound(bad, good, alpha, prior) <= 1.0
