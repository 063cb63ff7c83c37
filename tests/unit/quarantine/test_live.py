"""Exact sampling, and the configuration of quarantine: what needs no replica."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Cell
from serve.config.gateway import GatewayConfig
from serve.config.quarantine import QuarantineConfig
from serve.errors import ConfigError
from serve.quarantine.detector import Detector, Terms
from serve.quarantine.sampling import EveryNth

FAST, SAFE = Cell("m", "fast", True, "tools_auto"), Cell("m", "safe", False, "tools_auto")
MODEL = {"family": "f", "grammar": "hermes", "pools": {"p": {}}}


@given(st.floats(0, 1), st.integers(0, 500))
def test_a_share_is_exact_at_every_moment(share: float, requests: int) -> None:
    sampler = EveryNth(share)
    due = sum(sampler.due(FAST) for _ in range(requests))
    assert abs(due - share * requests) < 1 + 1e-6


def test_cells_have_shares_of_their_own() -> None:
    sampler = EveryNth(0.25)
    turns = [(sampler.due(FAST), sampler.due(SAFE)) for _ in range(8)]
    assert turns == [(False, False)] * 3 + [(True, True)] + [(False, False)] * 3 + [(True, True)]


def test_the_configuration_is_the_detectors_own_settings() -> None:
    values = {"alpha": 0.01, "window": 500}
    settings = GatewayConfig.parse({"models": {"m": MODEL}, "quarantine": values}).quarantine
    assert settings == QuarantineConfig(alpha=0.01, window=500)
    assert Detector(Terms(settings)).terms.settings == settings
    assert math.isclose(GatewayConfig.parse({"models": {"m": MODEL}}).quarantine.alpha, 0.001)


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"window": 3}, {"probe_share": 0.9}, {"probes": 1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"quarantine.{next(iter(wrong))}"):
        GatewayConfig.parse({"models": {"m": MODEL}, "quarantine": wrong})
