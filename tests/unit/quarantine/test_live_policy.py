"""The configuration of quarantine."""

import math

import pytest

from serve.config.gateway import GatewayConfig
from serve.config.quarantine import QuarantineConfig
from serve.errors import ConfigError
from serve.quarantine.detector import Detector, DetectorTerms

MODEL = {"family": "f", "grammar": "hermes", "pools": {"p": {}}}


def test_the_configuration_is_the_detectors_own_settings() -> None:
    values = {"alpha": 0.01, "window": 500}
    settings = GatewayConfig.parse({"models": {"m": MODEL}, "quarantine": values}).quarantine
    assert settings == QuarantineConfig(alpha=0.01, window=500)
    assert Detector(DetectorTerms(settings)).terms.settings == settings
    assert math.isclose(GatewayConfig.parse({"models": {"m": MODEL}}).quarantine.alpha, 0.001)


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"window": 3}, {"probe_share": 0.9}, {"probes": 1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"quarantine.{next(iter(wrong))}"):
        GatewayConfig.parse({"models": {"m": MODEL}, "quarantine": wrong})
