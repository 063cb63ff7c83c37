"""Reports, and choosing cases."""

import pytest

from lab.conform import (
    API_CASES,
    CASES,
    SECURITY_CASES,
    Case,
    CaseResult,
    CaseStatus,
    ConformanceReport,
    select,
)
from lab.conform.lab import Lab
from lab.conform.report import CaseRun
from serve.errors import ConfigError


async def nothing(_: Lab) -> CaseResult:
    return CaseResult(CaseStatus.PASS, "")


def row(name: str, status: CaseStatus, seen: str = "seen") -> CaseRun:
    return CaseRun(Case(name, f"rule of {name}", "source", nothing), CaseResult(status, seen), 1.234)


def test_only_a_failure_spoils_a_report() -> None:
    assert ConformanceReport("u", "m", (row("a", CaseStatus.PASS), row("b", CaseStatus.NOT_APPLICABLE))).green
    assert not ConformanceReport("u", "m", (row("a", CaseStatus.PASS), row("b", CaseStatus.FAIL))).green


def test_data_holds_every_case_with_rule_and_source() -> None:
    data = ConformanceReport("u", "m", (row("a", CaseStatus.FAIL),)).to_dict()
    assert data["counts"] == {"pass": 0, "fail": 1, "n/a": 0}
    assert data["cases"] == [
        {"case": "a", "verdict": "fail", "seen": "seen", "rule": "rule of a", "source": "source", "seconds": 1.23}
    ]


def test_what_was_seen_cannot_break_the_markdown_table() -> None:
    lines = ConformanceReport("u", "m", (row("a", CaseStatus.PASS, "x | y\nz"),)).to_markdown().splitlines()
    assert lines[2] == "| a | rule of a | pass | x \\| y z |"
    assert lines[-1] == "1 cases: 1 pass, 0 fail, 0 n/a."


def test_every_case_has_a_name_of_its_own_and_says_rule_and_source() -> None:
    cases = [*(case for table in API_CASES.values() for case in table), *SECURITY_CASES]
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.rule.endswith(".") and case.source for case in cases)


def test_cases_are_chosen_by_name() -> None:
    assert [case.name for case in select(CASES, ["poison-500", "strict"])] == ["strict", "poison-500"]
    assert select(CASES, []) == list(CASES)
    with pytest.raises(ConfigError, match="no such case: nope; known: unknown-fields"):
        select(CASES, ["nope"])
