"""Limits in the configuration."""

import traceback

import pytest
from pydantic import TypeAdapter, ValidationError

from serve.config.gateway import GatewayConfig
from serve.config.rate_limits import Limits, RateLimitsConfig, StoreConfig
from serve.errors import ConfigError

CONFIG = TypeAdapter(RateLimitsConfig)


def test_nothing_is_limited_by_default() -> None:
    assert CONFIG.validate_python({}).default == Limits()


@pytest.mark.parametrize(
    "wrong",
    [
        {"default": {"tokens_per_minute": 0}},
        {"default": {"tokens_per_second": 1}},
        {"weights": {"output": -1}},
        {"burst_s": 0},
        {"estimate": "exact"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CONFIG.validate_python(wrong)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host", "must begin with one of redis://"),
        ("redis://", "names no host"),
        ("redis://host:many", "port is no number"),
        ("redis://host/zero", "number of a database"),
        ("redis://host?ssl_cert_reqs=none", "has parameters"),
        ("redis://user:canary-1@host", "do not belong into the url"),
        ("redis://:canary-1@host:many", "port is no number"),
    ],
)
def test_the_address_of_a_store_is_checked_and_not_repeated(url: str, said: str) -> None:
    config = {
        "models": {"m": {"family": "qwen3", "pools": {"p": {"kind": "sim"}}}},
        "rate_limits": {"store": {"url": url}},
    }
    with pytest.raises(ConfigError, match=said) as refused:
        GatewayConfig.parse(config)
    assert "canary" not in "".join(traceback.format_exception(refused.value))


def test_a_store_is_reached_under_either_name() -> None:
    assert StoreConfig(url="valkeys://host:1/2").address == "rediss://host:1/2"
    assert StoreConfig(url="redis://host").address == "redis://host"


def test_a_password_has_one_source() -> None:
    with pytest.raises(ValueError, match="not both"):
        StoreConfig(url="redis://host", password_env="A", password_file="b")
    with pytest.raises(ValueError, match="a user needs"):
        StoreConfig(url="redis://host", user="specgate")
