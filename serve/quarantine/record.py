"""The record of one cell: the outcomes of its answers, and its quarantine status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from policies import Cell, QuarantineReason
from serve.guard.core.verdict import Outcome

Status = Literal["open", "quarantined"]
By = Literal["test", "operator"]


@dataclass(frozen=True)
class Change:
    """A change of a cell's status.

    Attributes:
        held: Only an operator can change it again.
        answers: Number of answers that decided the test; 0 if an operator decided.
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
        outcomes: In the current window.
        before: Bad and good answers of the previous window, if there was one.
        suspected: An advisory warns of it.
        held, decided_by: `Change.held` and `Change.answers` of the last change.
        since_s: Unix time of the last change.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    before: tuple[int, int] | None = None
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

    def begin_window(self) -> None:
        self.before = (self.bad, self.good)
        self.outcomes = Counter()

    def apply(self, change: Change) -> None:
        """Sets the new status and restarts counting: outcomes under the old status say nothing about the new one."""
        self.status = change.status
        self.held = change.held
        self.by = change.by
        self.since_s = change.at_s
        self.why = change.why
        self.decided_by = change.answers
        self.outcomes = Counter()
        self.before = None

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, fit for JSON."""
        return {**asdict(self), "outcomes": dict(self.outcomes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CellRecord:
        """Restores a record from `as_dict`, with or without a round trip through JSON."""
        before = tuple(values["before"]) if values["before"] else None
        return cls(**{**values, "outcomes": Counter(values["outcomes"]), "before": before})
