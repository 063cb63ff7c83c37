"""The verdict on an answer: its defects, how severe each is, and with which of them it still reaches its client.

Whoever finds a defect names its severity, which is the same wherever that defect is found (the table of
docs/explanation/guard.md); those that hang on settings or on the request are below. What then becomes of the answer:

| severity | another attempt may follow | none can do better |
|---|---|---|
| `HARD` | held, run again | an error; sent and marked with `on_failure: unclean` |
| `SOFT` | held, run again | sent and marked; an error in mode `strict` |
| `SUSPECT` | held, run again once | sent and marked |
| `NOTE` | sent | sent |

So arguments with a member that the schema forbids reach the client if the tool is not `strict` and no rerun was better:
a model that writes them again means them, its client asked for no guarantee, and would rather judge such a call than
get none. With a strict tool, or in mode `strict`, they are `HARD`, and only `on_failure: unclean` lets them out. What
becomes of arguments whose schema could not be judged is the setting `unjudged`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serve.config.guard import GuardConfig

_MOST_TOLD = 5
# Of 2.3 million places in public files, 4,100 end in a repetition, nearly all in test data of one part (docs/adr/0127).
_TAIL = 2048  # characters
_LONGEST = _TAIL // 4  # part that is repeated, so that it is there four times at least


class Severity(StrEnum):
    """The consequence of a defect.

    `HARD`: the answer must not leave as it is. `SOFT`: another pool may do better, so it is rerun; if it persists, the
    model means it, and it is delivered and marked. `SUSPECT`: what may be damage and may be meant, so that it is rerun
    once; if it persists, the model means it, and it is delivered and marked whatever the mode. `NOTE`: it is only
    counted.
    """

    HARD = "hard"
    SOFT = "soft"
    SUSPECT = "suspect"
    NOTE = "note"


_GRAVEST_FIRST = (Severity.HARD, Severity.SOFT, Severity.SUSPECT, Severity.NOTE)
_ALL = frozenset(Severity)


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
    REPETITION = "repetition"
    RESCUED = "rescued"
    RERUN = "rerun"
    FAILED = "failed"
    UNJUDGED = "unjudged"
    GUARD_ERROR = "guard_error"


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong with an answer.

    Attributes:
        detail: One sentence for logs; quotes no more of the answer than a tool's name.
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
        counts: Whether the answer says something about its pool. One that was cancelled, or cut by `length` for another
            reason than words without end, does not.
        by_length: Whether `length` is why it does not.
    """

    outcome: Outcome
    defects: tuple[Defect, ...] = ()
    counts: bool = True
    by_length: bool = False

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
    return min(defects, key=lambda defect: _GRAVEST_FIRST.index(defect.severity), default=None)


class DefectLog:
    """Collects the defects of a choice. The severities that it tolerates hold nothing back (`tolerated`).

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

    def report(self, outcome: Outcome, detail: str, severity: Severity = Severity.HARD, *, once: bool = False) -> None:
        """Adds a defect; `once` skips it if the very same is there already. The detail is one sentence for logs."""
        defect = Defect(outcome, severity, detail, self._choice)
        if not once or defect not in self.defects:
            self.defects.append(defect)

    def report_call(self, defect: Defect) -> None:
        """Adds a defect of a call, unless that call has a hard one already."""
        if not any(other.call == defect.call and other.severity is Severity.HARD for other in self.defects):
            self.defects.append(defect)

    def stops(self, severity: Severity) -> bool:
        return severity not in self._tolerates


def severity_of_mismatch(settings: GuardConfig, *, strict: bool) -> Severity:
    """Returns the severity of whole JSON that does not fit its schema; a strict one is a promise to the client."""
    if strict or settings.mode == "strict":
        return Severity.HARD
    return Severity.SOFT if settings.schema == "enforce" else Severity.NOTE


def severity_of_unjudged(settings: GuardConfig) -> Severity:
    """Returns the severity of JSON whose schema could not be applied, which no other pool would change."""
    return Severity.HARD if settings.unjudged == "refuse" else Severity.NOTE


def severity_of_near_copy(settings: GuardConfig) -> Severity:
    """Returns the severity of a valid call that names what is nearly in the prompt."""
    return Severity.SUSPECT if settings.near_copies == "rerun" else Severity.NOTE


def tolerated(settings: GuardConfig, *, last: bool, suspected: bool) -> frozenset[Severity]:
    """Returns the severities that hold nothing of an attempt back.

    Args:
        settings: Of the guard.
        last: No other attempt will follow.
        suspected: An earlier attempt held a suspicion, so that this one is its rerun.
    """
    if settings.mode == "observe":
        return _ALL
    if last:
        return delivered_at_last(settings)
    return frozenset({Severity.SUSPECT, Severity.NOTE} if suspected else {Severity.NOTE})


def delivered_at_last(settings: GuardConfig) -> frozenset[Severity]:
    """Returns the severities with which an answer reaches its client once no other attempt can do better."""
    if settings.mode == "strict":
        return frozenset({Severity.SUSPECT, Severity.NOTE})
    return _ALL if settings.on_failure == "unclean" else _ALL - {Severity.HARD}


def ends_in_repetition(text: str) -> bool:
    """Returns whether a text ends in words that are said again and again, as a model writes that has lost its way: its
    last 2,048 characters are one part of at most 512 over and over, to the letter.
    """
    tail = text[-_TAIL:]
    # Twice the longest part: nothing shorter tells its length for certain.
    again = tail.rfind(tail[-2 * _LONGEST :], 0, -1)
    part = len(tail) - 2 * _LONGEST - again
    return len(tail) == _TAIL and again >= 0 and part <= _LONGEST and tail[part:] == tail[:-part]
