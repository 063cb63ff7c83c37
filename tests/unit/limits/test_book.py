"""The book of usage: sums by the hour, once for each report."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from serve.errors import ConfigError
from serve.limits.book import UsageBook, read
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
    assert book.spending(["tenant:acme"], MORNING) == {"tenant:acme": 5.0}


def test_spending_begins_with_each_month() -> None:
    book = UsageBook()
    book.add("r", 1, {}, {"tenant:acme": 5.0}, MORNING)
    assert book.spending(["tenant:acme"], MORNING) == {"tenant:acme": 5.0}
    assert book.spending(["tenant:acme"], NEXT_MONTH) == {"tenant:acme": 0.0}
    book.add("r", 2, {}, {"tenant:acme": 2.0}, NEXT_MONTH)
    assert book.spending(["tenant:acme", "tenant:other"], NEXT_MONTH) == {"tenant:acme": 2.0, "tenant:other": 0.0}


def test_an_empty_book_has_no_rows() -> None:
    assert UsageBook().usage(["tenant"]) == []
    assert UsageBook().usage([]) == []


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read(str(tmp_path), ["tenant"], None, None)
    with pytest.raises(ConfigError, match="usage has no prices"):
        UsageBook().usage(["prices"])
