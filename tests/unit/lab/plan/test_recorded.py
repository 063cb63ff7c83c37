"""Recorded requests become traffic: by the gateway's own classes, and with every assumption stated."""

import json
from typing import Any

import pytest

from lab.plan.recorded import read
from lab.simulation.site import default_config
from serve.errors import ConfigError
from serve.tools.decider import Decider

SYSTEM = {"role": "system", "content": "Be exact. " * 100}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def decider() -> Decider:
    return Decider(default_config())


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [SYSTEM, {"role": "user", "content": "hi"}], **fields}


def lines(*records: Any) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def test_classes_lengths_and_shared_beginnings_come_from_the_bodies(decider: Decider) -> None:
    records = lines(
        chat(max_tokens=30), {"body": chat(tools=[TOOL])}, {"body": json.dumps(chat()), "output_tokens": 77}, chat()
    )
    traffic, assumed = read(records, decider, 2.0)
    assert [request.kind for request in traffic.requests] == ["prose", "tools", "prose", "prose"]
    assert [request.output_tokens for request in traffic.requests] == [30, 150, 77, 400]
    assert [request.at_s for request in traffic.requests] == [0.0, 0.5, 1.0, 1.5]
    prefixes = [request.prefix for request in traffic.requests]
    assert prefixes[0] == prefixes[2] != prefixes[1]
    assert prefixes[0][1] >= 250
    assert any("no times" in line for line in assumed)


def test_recorded_times_are_kept(decider: Decider) -> None:
    traffic, assumed = read(lines({"t_s": 4.0, "body": chat()}, {"t_s": 1.0, "body": chat()}), decider, 1.0)
    assert [request.at_s for request in traffic.requests] == [1.0, 4.0]
    assert not any("no times" in line for line in assumed)


def test_a_traffic_file_is_read_as_it_is(decider: Decider) -> None:
    line = {"t_s": 0.5, "session": "s", "class": "tools", "prompt_tokens": 1200, "output_tokens": 150}
    traffic, assumed = read(lines({"acceptance": {"tools": [0.5]}}, line), decider, 1.0)
    assert traffic.requests[0].output_tokens == 150
    assert traffic.drafter.length("tools", 1, 0.0) == 1.5
    assert assumed == []


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["x"],
        [{"body": {"model": "unknown", "messages": []}}],
        [{"t_s": 1}],
        [{"t_s": -1, "body": chat()}],
        [{"t_s": float("nan"), "body": chat()}],
        [{"t_s": "1", "body": chat()}],
        [{"output_tokens": -5, "body": chat()}],
        [{"output_tokens": 1.5, "body": chat()}],
        [{"headers": ["a"], "body": chat()}],
        [{"headers": {"x-session-id": 1}, "body": chat()}],
        [chat(max_tokens="many")],
        [chat(messages="x")],
    ],
)
def test_what_is_no_recording_is_refused(decider: Decider, records: list[Any]) -> None:
    with pytest.raises(ConfigError):
        read(lines(*records), decider, 1.0)
