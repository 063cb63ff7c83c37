"""The record of one cell: the outcomes of its answers, its trials against the reference, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from policies import Cell, QuarantineReason
from serve.guard.core.verdict import Outcome
from serve.quarantine.evidence import Count, TrialCounts
from serve.quarantine.sequential import Finding, SequentialTest

BLOCKS = 8  # that a window's trials are cut into: bets begin with each
RECENT = 2000  # answers after which their counting restarts, so that rates are those of today

Status = Literal["open", "quarantined"]
By = Literal["test", "operator", "echo"]
Share = Annotated[float, Meta(ge=0, le=1)]
UnixTime = Annotated[float, Meta(ge=0, lt=1e12)]
EchoKey = tuple[str, str, bool]  # model, pool, with speculation


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a cell's status.

    Attributes:
        held: Only an operator can change it again.
        answers: Number of trials that decided the test; 0 if an operator decided.
        why: One sentence with the figures, or the operator's reason.
        operator: Id of the operator's key, if one decided.
    """

    cell: Cell
    status: Status
    by: By
    at_s: UnixTime
    why: str
    held: bool = False
    answers: Count = 0
    operator: str = ""


class CellRecord(Struct, forbid_unknown_fields=True):
    """One cell's outcomes and status.

    Attributes:
        outcomes: Of its latest first answers, for operators; nothing is decided by them.
        own_share: Chance with which the cell answered first in these trials.
        suspected: An advisory warned of it at some time of the window.
        held, decided_by: `Change.held` and `Change.answers` of the last change.
        since_s: Unix time of the last change.
    """

    cell: Cell
    outcomes: dict[str, Count] = {}
    trials: Annotated[list[TrialCounts], Meta(max_length=BLOCKS)] = []
    own_share: Share = 0.0
    suspected: bool = False
    status: Status = "open"
    held: bool = False
    by: By = "test"
    since_s: UnixTime = 0.0
    why: str = ""
    decided_by: Count = 0

    @property
    def answers(self) -> int:
        return sum(self.outcomes.values())

    @property
    def good(self) -> int:
        return self.outcomes.get(Outcome.CLEAN, 0)

    @property
    def bad(self) -> int:
        return self.answers - self.good

    def count(self, outcome: str, answers: int) -> None:
        """Counts first answers, from the start again once there are many."""
        if self.answers >= RECENT:
            self.outcomes = {}
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + answers

    @property
    def reason(self) -> QuarantineReason:
        """The reason for quarantine, as decisions report it."""
        return QuarantineReason(self.why, "operator" if self.by == "operator" else f"measured n={self.decided_by}")

    def prepare(self, own_share: float, suspected: bool) -> None:
        """Begins a window for trials that can't be judged together with those before: the bets are others."""
        if own_share != self.own_share or (suspected and not self.suspected):
            self.trials = []
        self.own_share = own_share
        self.suspected = suspected or (self.suspected and bool(self.trials))

    def add(self, trials: TrialCounts) -> None:
        """Counts trials in the current block."""
        if not self.trials:
            self.trials.append(TrialCounts())
        self.trials[-1] += trials

    def cut(self, window: int) -> None:
        """Begins a block, or a window, once the current one has as many of the reference's answers as it may have."""
        if not self.trials or self.trials[-1].reference < window / BLOCKS:
            return
        if len(self.trials) < BLOCKS:
            self.trials.append(TrialCounts())
        else:
            self.trials = []

    def apply(self, change: Change) -> None:
        """Sets the new status and restarts counting: outcomes under the old status say nothing about the new one."""
        self.status = change.status
        self.held = change.held
        self.by = change.by
        self.since_s = change.at_s
        self.why = change.why
        self.decided_by = change.answers
        self.outcomes = {}
        self.trials = []


class EchoRecord(Struct, forbid_unknown_fields=True):
    """The echo canary's identifiers that one pool has copied, right and wrong.

    Attributes:
        build: Of the engine that copies now; another one is counted from the start.
        trials, corrupted: Identifiers since the last finding, or of this build.
        status: `quarantined` from the finding that it is corrupt on, until one that it is sound.
        since_s: Unix time of the last change of status.
    """

    key: EchoKey
    build: str = ""
    trials: Count = 0
    corrupted: Count = 0
    judged: bool = False
    status: Status = "open"
    since_s: UnixTime = 0.0
    why: str = ""
    held: ClassVar[bool] = False
    suspected: ClassVar[bool] = False
    by: ClassVar[By] = "echo"

    def add(self, build: str, trials: int, corrupted: int) -> None:
        if build != self.build:
            self.build, self.trials, self.corrupted, self.judged = build, 0, 0, False
        self.trials += trials
        self.corrupted += corrupted

    @property
    def finding(self) -> Finding:
        """The conclusion that is certain so far."""
        return SequentialTest(trials=self.trials, corrupted=self.corrupted).finding

    def conclude(self, now_s: float) -> bool:
        """Takes the finding, and begins a new test; returns whether the status has changed."""
        status: Status = "quarantined" if self.finding == "corrupt" else "open"
        changed = status != self.status
        self.why = f"{self.corrupted} of {self.trials} identifiers came out changed"
        self.status, self.since_s = status, now_s if changed else self.since_s
        self.judged, self.trials, self.corrupted = True, 0, 0
        return changed


class DetectorRecords(Struct):
    """The whole state of a detector, as replicas, the shared detector and its file exchange it."""

    version: int
    entries: list[CellRecord]
    changes: list[Change]
    echoes: list[EchoRecord] = []


class KeptRecords(DetectorRecords):
    """The state in a file, with the version of the shared state and the number of each replica's last report."""

    revision: Count = 1
    reports: dict[str, Count] = {}


def parsed(data: bytes) -> Mapping[str, Any]:
    """Returns the state in a file's content: whatever is there, only numbers that can be true come out of it.

    Raises:
        ValueError: It is none.
    """
    try:
        kept: Mapping[str, Any] = msgspec.to_builtins(msgspec.json.decode(data, type=KeptRecords))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no state of quarantine: {error}") from None
    return kept
