"""The record of one cell: the outcomes of its answers, its trials against the reference, and its status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from policies import Cell, QuarantineReason
from serve.guard.core.verdict import Outcome
from serve.quarantine.evidence import TrialCounts
from serve.quarantine.sequential import Finding, SequentialTest

BLOCKS = 8  # that a window's trials are cut into: bets begin with each
RECENT = 2000  # answers after which their counting restarts, so that rates are those of today

Status = Literal["open", "quarantined"]
By = Literal["test", "operator", "echo"]


@dataclass(frozen=True)
class Change:
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
    at_s: float
    why: str
    held: bool = False
    answers: int = 0
    operator: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, fit for JSON."""
        return {**asdict(self), "cell": list(self.cell)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Change:
        """Restores a change from `as_dict`, with or without a round trip through JSON."""
        return cls(**{**values, "cell": Cell(*values["cell"])})


@dataclass
class CellRecord:
    """One cell's outcomes and status.

    Attributes:
        outcomes: Of its latest first answers, for operators; nothing is decided by them.
        own_share: Chance with which the cell answered first in these trials.
        suspected: An advisory warned of it at some time of the window.
        held, decided_by: `Change.held` and `Change.answers` of the last change.
        since_s: Unix time of the last change.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    trials: list[TrialCounts] = field(default_factory=list)
    own_share: float = 0.0
    suspected: bool = False
    status: Status = "open"
    held: bool = False
    by: By = "test"
    since_s: float = 0.0
    why: str = ""
    decided_by: int = 0

    @property
    def good(self) -> int:
        return self.outcomes[Outcome.CLEAN]

    @property
    def bad(self) -> int:
        return self.outcomes.total() - self.good

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
        self.outcomes = Counter()
        self.trials = []

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, fit for JSON."""
        named = asdict(self)
        return {**named, "outcomes": dict(self.outcomes), "trials": [list(block) for block in self.trials]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CellRecord:
        """Restores a record from `as_dict`, with or without a round trip through JSON."""
        trials = [TrialCounts(*block) for block in values["trials"]]
        return cls(**{**values, "outcomes": Counter(values["outcomes"]), "trials": trials})


@dataclass
class EchoRecord:
    """The echo canary's identifiers that one pool has copied, right and wrong.

    Attributes:
        build: Of the engine that copies now; another one is counted from the start.
        trials, corrupted: Identifiers since the last finding, or of this build.
        judged: There was a finding on this build.
        status: `quarantined` from the finding that it is corrupt on, until one that it is sound.
        since_s: Unix time of the last change of status.
        why: The figures of the last finding.
    """

    build: str = ""
    trials: int = 0
    corrupted: int = 0
    judged: bool = False
    status: Status = "open"
    since_s: float = 0.0
    why: str = ""

    def add(self, build: str, trials: int, corrupted: int) -> None:
        """Counts what was copied."""
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
