"""Recorded sessions on replicas: how a trace is read, and what each choice of a replica comes to."""

import json
from typing import Any

import pytest

from bench.goodput.traces import CHOICES, most, played
from lab.simulation.request import BLOCK_TOKENS
from lab.simulation.traces import Turn, arrivals, read_trace


def request(at_s: float, first: int, blocks: int, **others: Any) -> dict[str, Any]:
    return {"t": at_s, "in": blocks * 64 + 9, "out": 120, "hash_runs": [[first, blocks]], **others}


TRACE = {
    "id": "a",
    "requests": [
        request(0.0, 1, 400),
        request(40.0, 1, 440),
        {"t": 50.0, "type": "subagent", "requests": [request(0.0, 9000, 100), request(6.0, 9000, 120)]},
        request(90.0, 1, 480),
    ],
}


TRACES = [read_trace(json.dumps(TRACE).encode())]


def test_a_trace_is_played_in_order_with_its_sub_agents_and_again_as_another_session() -> None:
    turns = arrivals(TRACES, 2, 0.0, 2.0, 0)
    assert [turn.at_s for turn in turns if turn.session == "a/0"] == [0.0, 20.0, 25.0, 28.0, 45.0]
    assert {turn.session for turn in turns} == {"a/0", "a/1"}
    first, second = (turn for turn in turns if turn.at_s == 20.0)
    assert len(first.blocks) == len(second.blocks) == 440 * 64 // BLOCK_TOKENS
    assert not {*first.blocks} & {*second.blocks}


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_serves_every_request(name: str) -> None:
    row = played(arrivals(TRACES, 6, 30.0, 1.0, 0), CHOICES[name]())
    assert 0 <= row["hit_rate"] < 1
    assert row["ttft_p50_s"] <= row["ttft_p99_s"]


def test_one_who_minds_prompts_finds_them_again_and_one_who_does_not_computes_them_anew() -> None:
    turns = arrivals(TRACES, 12, 60.0, 1.0, 0)
    rates = {name: played(turns, choice())["hit_rate"] for name, choice in CHOICES.items()}
    assert rates["prefix (ours)"] > 0.97 * rates["clairvoyant"]
    assert max(rates.values()) <= most(turns)
    assert rates["round robin"] < 0.8 * rates["clairvoyant"]


def test_many_sub_agents_of_one_session_do_not_make_one_replica_hot() -> None:
    """Agents send one cache key for all sub-agents of a session: a hash of it puts them on one replica."""
    turns = [Turn(number / 10, "s", 20_000, 500, tuple(range(number * 100, number * 100 + 78))) for number in range(80)]
    busiest = {name: played(turns, CHOICES[name]())["busiest"] for name in ("consistent hash", "prefix (ours)")}
    assert busiest["consistent hash"] == 4
    assert busiest["prefix (ours)"] < 1.5
