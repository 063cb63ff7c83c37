"""The board: the state of each pool from what several gateway replicas see, small enough to be asked for often."""

import json
import time
from typing import Any

import pytest

from serve.admin.board import board, drafts_known
from serve.admin.history import History
from serve.errors import encode_json


def pool(engines: int = 1, **changes: Any) -> dict[str, Any]:
    urls = [{"url": f"http://e{number}", "key": "a-secret"} for number in range(engines)]
    row = {"model": "m", "pool": "p", "kind": "vllm", "may_sleep": False, "slots": 8, "held": 2, "waiting": 1}
    return {**row, "engines": urls, **changes}


def snapshot(*pools: dict[str, Any], **changes: Any) -> dict[str, Any]:
    policy = {"digest": "d1", "refused_update": None}
    empty: dict[str, Any] = {"cells": [], "changes": [], "reruns": [], "tenants": [], "queue": {}, "samples": []}
    return {"version": "1.2.3", "policy": policy, "pools": list(pools), "rerun_content": False, **empty, **changes}


def cell(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "pool": "p", "request_class": kind, "speculative": True, "status": "open", "held": False,
        "by": "", "why": "", "since_s": 0.0, "answers": 100, "bad": 2, "clean_rate": 0.98, "bad_rate_at_least": 0.001,
        "bad_rate_at_most": 0.0712345, "outcomes": {}, "suspected": False, "reference": False, **changes,
    }  # fmt: skip


def only(snapshots: dict[str, Any], **up: bool) -> dict[str, Any]:
    (row,) = board(snapshots, [], {f"http://{name}": is_up for name, is_up in up.items()}, History())["pools"]
    return dict(row)


@pytest.mark.parametrize(
    ("engines", "up", "state"),
    [
        (2, {"e0": True, "e1": True}, "up"),
        (2, {"e0": True, "e1": False}, "degraded"),
        (2, {"e0": False, "e1": False}, "down"),
        (0, {}, "down"),
    ],
)
def test_a_pool_is_up_as_far_as_its_engines_can_be_reached(engines: int, up: dict[str, bool], state: str) -> None:
    row = only({"a": snapshot(pool(engines))}, **up)
    assert (row["state"], row["engines"], row["engines_up"]) == (state, engines, sum(up.values()))


def test_a_pool_that_may_have_no_replica_sleeps() -> None:
    assert only({"a": snapshot(pool(0, may_sleep=True))})["state"] == "asleep"


def test_what_gateway_replicas_hold_adds_up_and_what_they_share_does_not() -> None:
    row = only({"a": snapshot(pool()), "b": snapshot(pool(held=5, waiting=0))})
    assert (row["slots"], row["held"], row["waiting"], row["engines"]) == (8, 7, 1, 1)


def test_slots_that_one_replica_does_not_know_yet_are_those_that_another_knows() -> None:
    assert only({"new": snapshot(pool(slots=None)), "old": snapshot(pool())})["slots"] == 8


def test_silent_replicas_are_named_and_different_policies_too() -> None:
    refused = {"digest": "d2", "refused_update": "policy.mode: nonsense"}
    reply = board({"a": snapshot(), "b": snapshot(policy=refused)}, ["c"], {}, History())
    assert [(each["replica"], each["answers"]) for each in reply["gateways"]] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert reply["policy"] == {"digests": ["d1", "d2"], "refused_update": "policy.mode: nonsense"}


def test_cells_in_quarantine_come_first_and_have_their_bounds() -> None:
    cells = [cell("tools_auto"), cell("json_schema", status="quarantined", why="12 of 20 answers bad", answers=20)]
    row = only({"a": snapshot(pool(), cells=cells)})
    assert [each["request_class"] for each in row["cells"]] == ["json_schema", "tools_auto"]
    assert row["cells"][1]["bad_rate_at_most"] == 0.0712


def test_a_tenant_has_its_limits_beside_what_all_replicas_see_it_use() -> None:
    limits = {"requests_per_minute": 60, "tokens_per_month": 1000, "shadow": False}
    standing = {"tenant": "acme", "limits": limits, "in_use": 2, "spent": 300.0}
    counted = [("specgate_limits_used_total", {"tenant": "acme", "limit": "requests"}, 5.0)]
    history = History()
    history.add(1.0, {"a": snapshot()})
    history.add(2.0, {"a": snapshot(samples=counted), "b": snapshot()})
    snapshots = {
        "a": snapshot(tenants=[standing], queue={"acme": 1, "idle": 3}),
        "b": snapshot(tenants=[{**standing, "spent": 310.4}], queue={"acme": 2}),
    }
    acme, idle = board(snapshots, [], {}, history)["tenants"]
    assert acme == {"tenant": "acme", "used_requests": 5, "limits": limits, "in_use": 4, "spent": 310, "waiting": 3}
    assert idle == {"tenant": "idle", "waiting": 3}


def test_the_timeline_of_quarantine_has_the_newest_changes_first_and_is_short() -> None:
    change = {"at_s": 1.0, "model": "m", "pool": "p", "request_class": "tools_auto", "speculative": True,
              "status": "quarantined", "held": False, "by": "test", "operator": "", "why": "x" * 500, "answers": 9,
              "cell": ["m", "p", True, "tools_auto"]}  # fmt: skip
    changes = [{**change, "at_s": 100.0 - number} for number in range(50)]
    reply = board({"a": snapshot(), "b": snapshot(changes=changes)}, [], {}, History())["changes"]
    assert [each["at_s"] for each in reply] == [100.0 - number for number in range(20)]
    assert len(reply[0]["why"]) == 200
    assert "cell" not in reply[0]


def test_pairs_of_all_replicas_make_one_verdict_on_a_candidate_with_its_bounds() -> None:
    pairs = {"model": "m", "pool": "new", "request_class": "tools_auto", "alpha": 0.01, "tolerance": 0.01,
             "none_bad": 30, "candidate_bad": 20, "served_bad": 0, "both_bad": 0, "outcomes": {"clean": 30},
             "served_s": 50.0, "candidate_s": 25.0}  # fmt: skip
    every, tools = board({"a": snapshot(shadows=[pairs]), "b": snapshot(shadows=[pairs])}, [], {}, History())[
        "candidates"
    ]
    assert (every["request_class"], tools["request_class"]) == (None, "tools_auto")
    assert (every["verdict"], every["pairs"], every["difference"]) == ("reject", 100, 0.4)
    assert 0 < every["at_least"] < 0.4 < every["at_most"] < 1
    assert (every["served_mean_s"], every["candidate_mean_s"]) == (1.0, 0.5)


def drafts(kind: str, idle_s: float | None, length: float = 2.0, answers: int = 9) -> dict[str, Any]:
    row = {"model": "m", "pool": "p", "request_class": kind, "answers": answers, "length": length, "drafts": 3}
    return {**row, "per_engine": 0.0, "factor": 1.0, "idle_s": idle_s}


def test_tokens_a_step_of_a_class_are_shown_for_half_an_hour_after_its_last_answer_at_any_replica() -> None:
    one = [drafts("tools", 7200, 2.111, 90), drafts("prose", 7200), drafts("json", None)]
    other = [drafts("tools", 60, 2.2), drafts("prose", 1801), drafts("json", None)]
    assert only({"a": snapshot(pool(), drafts=one), "b": snapshot(pool(), drafts=other)})["acceptance"] == {
        "tools": 2.11
    }


def test_tokens_a_step_that_are_mostly_expected_are_not_shown_as_measured() -> None:
    rows = [drafts("tools", 1) | {"measured": False}, drafts("json", 1) | {"measured": True}]
    assert only({"a": snapshot(pool(), drafts=rows)})["acceptance"] == {"json": 2.0}


def test_drafts_are_known_as_the_replica_tells_that_has_heard_of_most_answers() -> None:
    older = {name: value for name, value in drafts("json", 0).items() if name != "idle_s"}
    snapshots = [{"drafts": [drafts("tools", None, 2.1, 90)]}, {"drafts": [drafts("tools", 60, 2.2), older]}, {}]
    assert drafts_known(snapshots) == [drafts("json", 0), drafts("tools", 60, 2.1, 90)]


def test_no_key_of_an_engine_is_on_the_board() -> None:
    assert "a-secret" not in json.dumps(board({"a": snapshot(pool())}, [], {}, History()))


def test_fifty_pools_fit_into_100_kB_and_take_little_time() -> None:
    names = [f"a-model-with-a-long-name-{number}" for number in range(50)]
    kinds = ("tools_auto+strict", "tools_forced", "json_schema+strict", "tools_auto+thinking")
    labels = {"pool": "speculative", "speculative": "on"}
    seen = snapshot(
        *(pool(4, model=name, pool="speculative") for name in names),
        cells=[cell(kind, model=name, pool="speculative", why="x" * 60) for name in names for kind in kinds],
        reruns=[{"at_s": 1, "model": "m", "pool": "p", "request_class": "tools_auto", "outcome": "invalid_json",
                 "defects": ["x" * 100], "attempt": 0, "request_id": "0" * 32}] * 50,
        changes=[{"at_s": 1_760_000_000.123456, "model": name, "pool": "speculative", "request_class": kinds[0],
                  "speculative": True, "status": "quarantined", "held": False, "by": "test", "operator": "0" * 10,
                  "why": "x" * 80} for name in names],
        tenants=[{"tenant": f"a-tenant-with-a-name-{number}", "in_use": 3, "spent": 123_456.7, "limits": {
            "requests_per_minute": 600, "tokens_per_minute": 100_000, "concurrency": 20, "tokens_per_month": 10**9,
            "shadow": False}} for number in range(200)],
        samples=[("specgate_requests_total", {**labels, "model": name, "status": "200"}, 1.0) for name in names],
    )  # fmt: skip
    history = History()
    for tick in range(360):
        history.add(1_760_000_000.0 + tick * 5, {"a": seen, "b": seen})
    best_s = float("inf")
    for _ in range(5):
        history.add(1_760_001_800.0, {"a": seen, "b": seen})  # a new period, of which nothing is known yet
        started = time.process_time()
        text = encode_json(board({"a": seen, "b": seen}, [], {}, history))
        best_s = min(best_s, time.process_time() - started)
    print(f"{len(text) / 1000:.0f} kB, {best_s * 1000:.1f} ms")  # `pytest -s` shows it
    assert len(text) <= 100_000


def test_failures_and_unknown_names_of_all_replicas_are_on_one_list_newest_first() -> None:
    def failed(at_s: float, name: str) -> dict[str, Any]:
        return snapshot(pool(), failures=[{"at_s": at_s, "request_id": name}], unknown_models={"claude-x": 2})

    found = board({"a": failed(1.0, "old"), "b": failed(2.0, "new")}, [], {}, History())
    assert [each["request_id"] for each in found["failures"]] == ["new", "old"]
    assert found["unknown_models"] == [{"name": "claude-x", "requests": 4}]


def test_a_replica_of_an_older_version_is_shown_with_what_it_tells() -> None:
    older = snapshot(pool())
    del older["version"]
    found = board({"a": older, "b": snapshot(pool(), version="9.9")}, [], {}, History())
    assert found["versions"] == ["9.9", "older"]
    assert found["pools"][0]["facts"] == {}
