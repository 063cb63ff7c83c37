"""The least replicas of each pool: as configured, and as told since."""

from typing import Any

import pytest

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.gateway.pools import Scale

POOLS: dict[str, Any] = {
    "fixed": {"kind": "sim", "replicas": 2},
    "elastic": {"kind": "sim", "autoscaling": {"min_replicas": 0, "max_replicas": 3}},
    "remote": {"kind": "remote", "url": "http://192.0.2.1:8000"},
}


@pytest.fixture
def scale() -> Scale:
    return Scale(GatewayConfig.parse({"models": {"m": {"family": "sim", "grammar": "hermes", "pools": POOLS}}}))


def test_a_pool_should_have_what_its_configuration_says(scale: Scale) -> None:
    assert dict(scale.each()) == {("m", "fixed"): 2, ("m", "elastic"): 0, ("m", "remote"): 1}
    assert [scale.may_sleep("m", name) for name in POOLS] == [False, True, False]


def test_what_is_told_later_holds_and_what_is_not_told_any_more_is_as_configured(scale: Scale) -> None:
    scale.adopt(scale.read({"m": {"fixed": 0, "elastic": 4}}))
    assert dict(scale.each()) == {("m", "fixed"): 0, ("m", "elastic"): 4, ("m", "remote"): 1}
    scale.adopt(scale.read({}))
    assert dict(scale.each()) == {("m", "fixed"): 2, ("m", "elastic"): 0, ("m", "remote"): 1}


@pytest.mark.parametrize("reply", [{"m": {"fixed": -1}}, {"m": 2}, [], None])
def test_nonsense_is_refused(scale: Scale, reply: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        scale.read(reply)


@pytest.mark.parametrize("given", [{"m": {"fixed": 1, "fixt": 9}}, {"other": {"fixed": 1}}])
def test_a_pool_that_does_not_exist_is_refused(scale: Scale, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"there is no pool (m/fixt|other/fixed); there are m/fixed, m/elastic"):
        scale.read(given)
