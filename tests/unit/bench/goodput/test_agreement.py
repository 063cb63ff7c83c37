"""The engine that serves HTTP and the discrete-event simulation agree."""

import pytest

from bench.goodput.agreement import TOLERANCE, measured


@pytest.mark.parametrize(("drafts", "rate_per_s"), [(0, 25.0), (3, 10.0), (3, 60.0)])
def test_served_and_simulated_agree(drafts: int, rate_per_s: float) -> None:
    row = measured(drafts, rate_per_s, seed=7, requests=150)
    assert row.worst <= TOLERANCE
