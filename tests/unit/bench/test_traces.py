"""Recorded sessions on replicas: how a trace is read, and what each choice of a replica comes to."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.goodput.traces import CHOICES, cluster, compare, mooncakes, most, played
from lab.simulation.traces import Turn, arrivals, read_trace
from serve.routing.prefix_placement import BLOCK_TOKENS


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
    row = played(arrivals(TRACES, 6, 30.0, 1.0, 0), CHOICES[name])
    assert 0 <= row["hit_rate"] < 1
    assert row["ttft_p50_s"] <= row["ttft_p99_s"]


def test_one_who_minds_prompts_finds_them_again_and_one_who_does_not_computes_them_anew() -> None:
    turns = arrivals(TRACES, 12, 60.0, 1.0, 0)
    rates = {name: played(turns, choice)["hit_rate"] for name, choice in CHOICES.items()}
    assert rates["prefix (ours)"] > 0.97 * rates["clairvoyant"]
    assert max(rates.values()) <= most(turns)
    assert rates["round robin"] < 0.8 * rates["clairvoyant"]


def test_many_users_prompts_as_another_project_records_them_are_played_too() -> None:
    lines = [
        json.dumps({"timestamp": at * 500, "input_length": 1400, "output_length": 9, "hash_ids": [0, at // 2, 90 + at]})
        for at in range(40)
    ]
    turns = mooncakes([line.encode() for line in lines], speed=2.0)
    assert (turns[3].at_s, turns[3].tokens, len(turns[3].blocks)) == (0.75, 1400, 1536 // BLOCK_TOKENS)
    assert len({turn.session for turn in turns}) == 20
    rates = {name: played(turns, choice)["hit_rate"] for name, choice in CHOICES.items()}
    assert rates["prefix (ours)"] > 0.97 * rates["clairvoyant"] > 0.5


def test_clusters_by_number_are_the_same_each_time_and_have_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(TRACE))
    assert cluster(3) == cluster(3)
    assert len({cluster(number) for number in range(30)}) > 20
    assert compare(file, range(3, 5), 30.0).row_count == 2


@pytest.mark.parametrize("kept_tokens", [30_000, 100_000, 10_000_000])
def test_prompts_are_found_again_whether_replicas_keep_few_or_many(kept_tokens: int) -> None:
    """Agents' conversations, each with a long pause, so that what was sent hours ago may still be there."""
    turns = [
        Turn(number * 2.0, f"s{number % 60}", 25_000 + number // 60 * 500, 50,
             tuple(hash((number % 60, at)) for at in range((25_000 + number // 60 * 500) // BLOCK_TOKENS)))
        for number in range(600)
    ]  # fmt: skip
    ours, best = (played(turns, CHOICES[name], 2, kept_tokens) for name in ("prefix (ours)", "clairvoyant"))
    assert ours["hit_rate"] >= 0.97 * best["hit_rate"]


def test_many_sub_agents_of_one_session_do_not_make_one_replica_hot() -> None:
    """Agents send one cache key for all sub-agents of a session: a hash of it puts them on one replica."""
    turns = [Turn(number / 10, "s", 20_000, 500, tuple(range(number * 100, number * 100 + 78))) for number in range(80)]
    busiest = {name: played(turns, CHOICES[name])["busiest"] for name in ("consistent hash", "prefix (ours)")}
    assert busiest["consistent hash"] == 4
    assert busiest["prefix (ours)"] < 1.5
