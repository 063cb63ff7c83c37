"""The vocabulary of a verdict: defects of an answer, their severity, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The result of one answer; the label of metrics and events."""

    CLEAN = "clean"
    TRUNCATED = "truncated"
    INVALID_JSON = "invalid_json"
    UNKNOWN_TOOL = "unknown_tool"
    SCHEMA_MISMATCH = "schema_mismatch"
    MARKER_LEAK = "marker_leak"
    EMPTY_WHEN_REQUIRED = "empty_when_required"
    RESCUED = "rescued"
    RERUN = "rerun"
    FAILED = "failed"


class Severity(StrEnum):
    """The consequence of a defect.

    `HARD`: the answer must not leave as it is. `SOFT`: another pool may do better, so it is rerun; if it persists, the
    model means it, and it is delivered and marked. `NOTE`: it is only counted.
    """

    HARD = "hard"
    SOFT = "soft"
    NOTE = "note"


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong with an answer.

    Attributes:
        outcome: Its kind.
        severity: Its consequence.
        detail: One sentence for logs; quotes no more of the answer than a tool's name.
        choice: Index of the choice.
        call: Index of the call in the engine's order, if it is in one.
    """

    outcome: Outcome
    severity: Severity
    detail: str
    choice: int = 0
    call: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The guard's verdict on one engine's answer.

    Attributes:
        outcome: `clean`, `rescued`, or the outcome of its gravest defect.
        defects: All that was found.
        counts: Whether the answer says something about its pool. One that was cut by `length` or cancelled does not.
    """

    outcome: Outcome
    defects: tuple[Defect, ...] = ()
    counts: bool = True

    @property
    def good(self) -> bool:
        """True if the pool did its work: a rescued answer is its fault, although the client does not see it."""
        return self.outcome is Outcome.CLEAN


_GRAVITY = (Severity.HARD, Severity.SOFT, Severity.NOTE)


def gravest(defects: tuple[Defect, ...]) -> Defect | None:
    """Returns the first of the most severe defects."""
    return min(defects, key=lambda defect: _GRAVITY.index(defect.severity), default=None)
