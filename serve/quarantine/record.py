"""What is known of one cell: the outcomes of its answers, and whether it is in quarantine."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from policies import Cell, Finding
from serve.guard.core.verdict import Outcome

Status = Literal["open", "quarantined"]
By = Literal["test", "operator"]


@dataclass(frozen=True)
class Change:
    """A cell's status changed.

    Attributes:
        held: Only an operator changes it again.
        answers: Number of answers that the test was sure by; 0 if it was an operator.
        why: One sentence with the figures.
    """

    cell: Cell
    status: Status
    by: By
    at_s: float
    why: str
    held: bool = False
    answers: int = 0


@dataclass
class Record:
    """One cell's outcomes and status.

    Attributes:
        outcomes: In the present window.
        before: Bad and good answers of the window before, if there was one.
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
    def finding(self) -> Finding:
        """Why it is out, as decisions tell it."""
        return Finding(self.why, "operator" if self.by == "operator" else f"measured n={self.decided_by}")

    def begin_window(self) -> None:
        self.before = (self.bad, self.good)
        self.outcomes = Counter()

    def change(self, change: Change) -> None:
        """Take on a status; what was counted under the old one says nothing about the new."""
        self.status, self.held, self.by = change.status, change.held, change.by
        self.since_s, self.why, self.decided_by = change.at_s, change.why, change.answers
        self.outcomes, self.before = Counter(), None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**asdict(self), "outcomes": dict(self.outcomes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Record:
        """What `as_dict` gave, or JSON made of it."""
        before = tuple(values["before"]) if values["before"] else None
        return cls(**{**values, "outcomes": Counter(values["outcomes"]), "before": before})
