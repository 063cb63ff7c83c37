"""A conformance case and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.conform.lab import Lab


class CaseStatus(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The status of a case, with a few words on what was seen."""

    status: CaseStatus
    seen: str


@dataclass(frozen=True, slots=True)
class Case:
    """One rule and its check.

    Attributes:
        name: Short and stable, because scripts select cases by it.
        rule: What a gateway must do.
        source: The standard that demands it, or a bug report from where it was missing.
        check: Tests a gateway.
    """

    name: str
    rule: str
    source: str
    check: Callable[[Lab], Awaitable[CaseResult]]


def passed_if(good: bool, seen: str) -> CaseResult:
    """Returns a pass if `good`, or else a failure."""
    return CaseResult(CaseStatus.PASS, seen) if good else failed(seen)


def failed(seen: str) -> CaseResult:
    """Returns a failure."""
    return CaseResult(CaseStatus.FAIL, seen)


def not_applicable(why: str) -> CaseResult:
    """Returns the result for a gateway that lacks the feature a rule is about."""
    return CaseResult(CaseStatus.NOT_APPLICABLE, why)
