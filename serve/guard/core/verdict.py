"""The vocabulary of a verdict: defects of an answer and the outcome; and the defects of one choice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serve.guard.core.severity import GRAVEST_FIRST, Severity

_MOST_TOLD = 5


class Outcome(StrEnum):
    """The result of one answer; the label of metrics and events."""

    CLEAN = "clean"
    TRUNCATED = "truncated"
    INVALID_JSON = "invalid_json"
    UNKNOWN_TOOL = "unknown_tool"
    SCHEMA_MISMATCH = "schema_mismatch"
    MARKER_LEAK = "marker_leak"
    EMPTY_WHEN_REQUIRED = "empty_when_required"
    PARALLEL_CALLS = "parallel_calls"
    NEAR_COPY = "near_copy"
    RESCUED = "rescued"
    RERUN = "rerun"
    FAILED = "failed"
    UNJUDGED = "unjudged"
    GUARD_ERROR = "guard_error"


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

    @property
    def place(self) -> str:
        """Its kind and where it is, without a word of the answer."""
        call = "" if self.call is None else f", call {self.call}"
        return f"{self.outcome} in choice {self.choice}{call}"


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
    def suspects(self) -> bool:
        """True if the answer was only, or among other things, suspicious."""
        return any(defect.severity is Severity.SUSPECT for defect in self.defects)

    @property
    def near_copies(self) -> int:
        """Number of calls that name what is nearly in the prompt."""
        return sum(defect.outcome is Outcome.NEAR_COPY for defect in self.defects)

    @property
    def good(self) -> bool:
        """True if the pool did its work: a rescued answer is its fault, although the client does not see it."""
        return self.outcome is Outcome.CLEAN

    @property
    def shape(self) -> str:
        """Kinds and places of the defects, for logs and traces: unlike their details, nothing of the answer."""
        return "; ".join([defect.place for defect in self.defects[:_MOST_TOLD]]) or str(self.outcome)


# The guard itself failed: no answer leaves as clean that nobody has judged, and no pool is blamed for our own fault.
GUARD_ERROR = Verdict(
    Outcome.GUARD_ERROR,
    (Defect(Outcome.GUARD_ERROR, Severity.HARD, "the guard failed; see the gateway's log"),),
    counts=False,
)


def gravest(defects: tuple[Defect, ...]) -> Defect | None:
    """Returns the first of the most severe defects."""
    return min(defects, key=lambda defect: GRAVEST_FIRST.index(defect.severity), default=None)


class DefectLog:
    """Collects defects.

    Args:
        choice: Index of the choice.
        tolerates: Severities that hold nothing back, as `tolerated` returns them.

    Attributes:
        defects: All that were reported, oldest first.
        contradicts: True if this attempt's document cannot continue the one that the client has begun to receive.
    """

    def __init__(self, choice: int, tolerates: frozenset[Severity]) -> None:
        self.defects: list[Defect] = []
        self.contradicts = False
        self._choice = choice
        self._tolerates = tolerates

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self.contradicts or any(self.stops(defect.severity) for defect in self.defects)

    @property
    def broken(self) -> bool:
        """True if nothing can save this attempt."""
        hard = any(defect.severity is Severity.HARD for defect in self.defects)
        return self.contradicts or (hard and self.stops(Severity.HARD))

    def report(
        self,
        outcome: Outcome,
        detail: str,
        severity: Severity = Severity.HARD,
        *,
        call: int | None = None,
        once: bool = False,
    ) -> None:
        """Adds a defect.

        Args:
            outcome: Its kind.
            detail: One sentence for logs.
            severity: What it demands.
            call: Index of the call that it is in.
            once: Skip it if the very same defect is there already.
        """
        defect = Defect(outcome, severity, detail, self._choice, call)
        if not once or defect not in self.defects:
            self.defects.append(defect)

    def report_call(self, defect: Defect) -> None:
        """Adds a defect of a call, unless that call has a hard one already."""
        if not any(other.call == defect.call and other.severity is Severity.HARD for other in self.defects):
            self.defects.append(defect)

    def stops(self, severity: Severity) -> bool:
        """Returns whether a defect of this severity keeps the answer from going out."""
        return severity not in self._tolerates
