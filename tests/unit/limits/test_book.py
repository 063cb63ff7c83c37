"""The book of usage: sums by the hour, once for each report."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.disks import full_disk

from serve.errors import ConfigError, InvalidRequestError, SharedStateError
from serve.limits.book import FILE, UsageBook, dimensions, read
from serve.limits.quota import month_of
from serve.limits.usage import UsageKey, UsageSums

MORNING = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
NEXT_MONTH = datetime(2026, 12, 1, tzinfo=UTC)
ACME = UsageKey("acme", "k1", "kimi", "fast", True)
OTHER = UsageKey("other", "k2", "kimi", "slow", False)
ONE = UsageSums(1, 10, 4, 20, 0, 0, 0)


def test_sums_are_kept_by_the_hour_and_added_up_by_what_is_asked_for(tmp_path: Path) -> None:
    book = UsageBook(str(tmp_path))
    book.add("r", 1, {ACME: ONE, OTHER: ONE}, {}, MORNING)
    book.add("r", 2, {ACME: ONE}, {}, MORNING)
    book.add("r", 3, {ACME: ONE}, {}, NOON)
    assert [(row["tenant"], row["requests"], row["output"]) for row in book.usage(["tenant"])] == [
        ("acme", 3, 60),
        ("other", 1, 20),
    ]
    assert [row["requests"] for row in book.usage(["hour"])] == [3, 1]
    assert [row["requests"] for row in book.usage(["day", "speculative"])] == [1, 3]
    assert book.usage([], since=NOON)[0]["requests"] == 1
    assert book.usage([], until=NOON)[0]["requests"] == 3
    assert read(str(tmp_path), ["tenant"], None, None) == book.usage(["tenant"])


def test_a_report_counts_once_even_if_the_ledger_died_before_it_was_answered(tmp_path: Path) -> None:
    UsageBook(str(tmp_path)).add("r", 7, {ACME: ONE}, {"tenant:acme": 5.0}, MORNING)
    book = UsageBook(str(tmp_path))
    book.add("r", 7, {ACME: ONE}, {"tenant:acme": 5.0}, MORNING)
    assert book.usage([])[0]["requests"] == 1
    assert book.spending(["tenant:acme"], month_of(MORNING)) == {"tenant:acme": 5.0}


def test_spending_begins_with_each_month() -> None:
    book = UsageBook()
    book.add("r", 1, {}, {"tenant:acme": 5.0}, MORNING)
    assert book.spending(["tenant:acme"], month_of(MORNING)) == {"tenant:acme": 5.0}
    assert book.spending(["tenant:acme"], month_of(NEXT_MONTH)) == {"tenant:acme": 0.0}
    book.add("r", 2, {}, {"tenant:acme": 2.0}, NEXT_MONTH)
    assert book.spending(["tenant:acme", "tenant:other"], month_of(NEXT_MONTH)) == {
        "tenant:acme": 2.0,
        "tenant:other": 0.0,
    }


def test_an_empty_book_has_no_rows() -> None:
    assert UsageBook().usage(["tenant"]) == []
    assert UsageBook().usage([]) == []


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read(str(tmp_path), ["tenant"], None, None)
    with pytest.raises(InvalidRequestError, match="Usage has no prices"):
        dimensions("tenant,prices")


def odd(path: Path, kind: str) -> None:
    """Puts something in the file's place that is no book of usage."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "text":
        path.write_text("no database " * 100)
    elif kind == "another's":
        with closing(sqlite3.connect(path)) as db:
            db.executescript("create table usage (hour text, note text); insert into usage values ('x', 'y')")
    elif kind == "cut":
        book(path)
        path.write_bytes(path.read_bytes()[:5000])
    else:
        book(path)
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)


def book(path: Path) -> None:
    made = UsageBook(str(path.parent))
    for number in range(200):
        made.add("r", number, {UsageKey(f"tenant-{number}", "k", "m", "p", False): ONE}, {}, MORNING)
    made.close()


@pytest.mark.parametrize("kind", ["folder", "fifo", "text", "another's", "cut", "overwritten"])
def test_what_can_not_be_used_is_put_aside_and_named_and_counting_goes_on(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    odd(path, kind)
    made = UsageBook(str(tmp_path))
    for _ in range(2):  # damage inside shows when it is met
        try:
            made.add("another", 1, {ACME: ONE}, {"tenant:acme": 5.0}, MORNING)
            made.usage(["tenant"])
            break
        except SharedStateError:
            continue
    assert made.usage(["tenant"], since=MORNING.replace(hour=0))[0]["tenant"] == "acme"
    assert made.spending(["tenant:acme"], month_of(MORNING)) == {"tenant:acme": 5.0}
    made.close()
    (aside,) = tmp_path.glob(f"{FILE}.damaged-*Z")
    assert str(aside) in caplog.text
    assert path.stat().st_mode & 0o77 == 0


def test_a_full_disk_loses_and_doubles_nothing(tmp_path: Path) -> None:
    made = UsageBook(str(tmp_path))
    made.add("r", 1, {ACME: ONE}, {"tenant:acme": 1.0}, MORNING)
    with full_disk(after=tmp_path / f"{FILE}-wal"), pytest.raises(sqlite3.Error):
        made.add("r", 2, {ACME: ONE}, {"tenant:acme": 1.0}, MORNING)
    assert made.usage([])[0]["requests"] == 1
    for _ in range(2):
        made.add("r", 2, {ACME: ONE}, {"tenant:acme": 1.0}, MORNING)
    assert made.usage([])[0]["requests"] == 2
    assert made.spending(["tenant:acme"], month_of(MORNING)) == {"tenant:acme": 2.0}
    made.close()


@pytest.mark.parametrize("place", ["a file/usage", "/proc/nothing"])
def test_where_there_can_be_no_file_the_error_says_what_to_do(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigError, match=r"usage\.sqlite can't be used .* make room"):
        UsageBook(str(tmp_path / place))
