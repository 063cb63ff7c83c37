"""Limits in the configuration."""

import pytest
from pydantic import TypeAdapter, ValidationError

from serve.config.rate_limits import Limits, RateLimitsConfig

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
