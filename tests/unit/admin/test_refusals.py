"""Refused calls in the audit log: each has a line, until somebody makes too many."""

from pathlib import Path

import pytest
from support.clock import ManualClock
from support.disks import full_disk

from serve.admin.audit import AuditEntry, AuditLog
from serve.admin.refusals import Refusals


def call(source: str = "10.0.0.1", key: str = "") -> AuditEntry:
    return AuditEntry(key, "team" if key else "", source, "refused", "GET /admin/v1/keys", reason="invalid_api_key")


def test_a_few_calls_have_lines_of_their_own() -> None:
    log = AuditLog(None)
    refusals = Refusals(log, ManualClock())
    for _ in range(5):
        refusals.write(call())
    refusals.tell()
    assert len(log.recent(99)) == 5


@pytest.mark.parametrize("key", ["", "k1"])
def test_a_flood_of_one_caller_is_a_few_lines_and_a_number(key: str) -> None:
    log, clock = AuditLog(None), ManualClock()
    refusals = Refusals(log, clock)
    for _ in range(60):
        for _ in range(1000):
            refusals.write(call(key=key))
        clock.now_s += 1.0
    refusals.write(call("10.0.0.2"))
    refusals.tell()
    newest, other, *lines = log.recent(999)
    assert (other["source"], len(lines)) == ("10.0.0.2", 31)
    assert newest["object"] == "59969 more calls of 1 callers, 59969 of them of this one"
    assert newest["key"] == key


def test_a_flood_from_ever_new_addresses_is_bounded_too() -> None:
    log, clock = AuditLog(None), ManualClock()
    refusals = Refusals(log, clock)
    for number in range(20_000):
        refusals.write(call(f"2001:db8::{number:x}"))
    refusals.tell()
    newest, *lines = log.recent(999)
    assert len(lines) == 200
    assert newest["object"].startswith("19800 more calls of ")
    clock.now_s += 100.0
    refusals.write(call())
    assert log.recent(1)[0]["source"] == "10.0.0.1", "there is room again"


def test_what_cannot_be_written_is_counted_until_it_can(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    refusals = Refusals(log, ManualClock())
    with full_disk(after=tmp_path / "audit-000001.jsonl"):
        for _ in range(30):
            refusals.write(call())
        refusals.tell()
    refusals.tell()
    log.close()
    (line,) = log.recent(9)
    assert line["object"] == "30 more calls of 1 callers, 30 of them of this one"
