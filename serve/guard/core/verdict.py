"""The words of a verdict: what was found in an answer, how bad it is, and what became of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What one judged answer was; the label of metrics and events."""

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
    """What a violation demands.

    `HARD`: the answer must not leave as it is. `SOFT`: another pool may do better, so it is rerun; if it persists, the
    model means it, and it is delivered and marked. `NOTE`: it is counted, nothing else.
    """

    HARD = "hard"
    SOFT = "soft"
    NOTE = "note"


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong with an answer.

    Attributes:
        outcome: Its kind.
        severity: What it demands.
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
    """The judgement of one engine's answer.

    Attributes:
        outcome: `clean`, `rescued`, or the outcome of its gravest violation.
        violations: All that was found.
        counts: Whether the answer says something about its pool. One that was cut by `length` or cancelled does not.
    """

    outcome: Outcome
    violations: tuple[Violation, ...] = ()
    counts: bool = True

    @property
    def good(self) -> bool:
        """Whether the pool did its work: a rescued answer is a fault of the pool, although the client sees none."""
        return self.outcome is Outcome.CLEAN


_GRAVITY = (Severity.HARD, Severity.SOFT, Severity.NOTE)


def gravest(violations: tuple[Violation, ...]) -> Violation | None:
    """The first of the most severe violations."""
    return min(violations, key=lambda violation: _GRAVITY.index(violation.severity), default=None)
