"""Routing by prefix beside a clairvoyant placement, and beside balance."""

import pytest

from bench.goodput.prefix import LOADS, measured


@pytest.mark.parametrize("load", LOADS)
def test_nearly_all_that_can_be_found_is_found_and_nobody_waits_longer_than_with_balance(load: str) -> None:
    prefix, balanced = measured(load, "prefix", 9), measured(load, "balanced", 9)
    assert prefix["of_clairvoyant"] >= 0.9
    assert prefix["ttft_ms"]["p99"] <= balanced["ttft_ms"]["p99"]
