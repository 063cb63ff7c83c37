"""One row of the table, and what may come of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve.tools.conform.lab import Lab


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict and what was seen, in a few words."""

    verdict: Verdict
    seen: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Attributes:
        name: Short and stable; scripts choose by it.
        rule: What a gateway must do.
        source: Who says so, or what went wrong where it was not done.
        check: Tries it.
    """

    name: str
    rule: str
    source: str
    check: Callable[[Lab], Awaitable[Result]]


def judged(good: bool, seen: str) -> Result:
    """Pass or fail."""
    return Result(Verdict.PASS if good else Verdict.FAIL, seen)


def not_applicable(why: str) -> Result:
    """The gateway has nothing that the rule could be about."""
    return Result(Verdict.NOT_APPLICABLE, why)
