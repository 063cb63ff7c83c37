"""Measured step times come from a configuration; anything that is no such table is refused."""

from typing import Any

import pytest

from lab.sim.economics import Economics
from lab.sim.settings import SimSettings
from policies.step_times import PUBLISHED
from serve.errors import ConfigError

TABLE: dict[str, Any] = {"drafts": [0, 3], "batches": [1, 64], "step_ms": [[10, 20], [15, 40]]}


def test_without_a_table_the_published_one_holds() -> None:
    assert Economics.from_mapping({}).step_times is PUBLISHED
    assert SimSettings.from_mapping({"economics": {}}).economics == Economics()


def test_a_measured_table_is_in_milliseconds() -> None:
    found = Economics.from_mapping({"step_times": TABLE})
    assert found.step_times.at(64, 3) == pytest.approx(0.04)
    assert found.step_times.at(1, 0) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "broken",
    [
        {"drafts": [0]},
        {"drafts": [3, 0]},
        {"drafts": [1, 3]},
        {"batches": [0, 64]},
        {"batches": ["1", "64"]},
        {"step_ms": [[10, 20]]},
        {"step_ms": [[10], [15]]},
        {"step_ms": [[10, 0], [15, 40]]},
        {"unknown": 1},
    ],
)
def test_what_is_no_table_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="step_times"):
        Economics.from_mapping({"step_times": TABLE | broken})


@pytest.mark.parametrize(
    "settings",
    [
        {"economics": {"kv": 1}},
        {"economics": {"kv_tokens": 0}},
        {"economics": {"overcommit": 0.5}},
        {"economics": {}, "step_ms": 5},
        {"acceptance": {"tools": [0.9]}},
        {"acceptance": {"tools": [], "json": [0.9], "thinking": [0.9], "prose": [0.9]}},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SimSettings.from_mapping(settings)


def test_classes_have_acceptance_of_their_own() -> None:
    profiles = {"tools": [0.9], "json": [0.8], "thinking": [0.7], "prose": [0.6]}
    settings = SimSettings.from_mapping({"acceptance": profiles})
    assert settings.acceptance_of("prose") == (0.6,)
