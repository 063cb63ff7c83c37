"""The detector: decides by the outcomes of answers which pools are fit for which requests. Pure.

It keeps clean rates per cell, quarantines cells whose rate is certainly worse than the reference's, and brings them
back once they have recovered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from policies import Cell, QuarantineReason
from serve.config.quarantine import QuarantineConfig
from serve.quarantine.confidence import SUSPECTED, UNSUSPECTED, Prior, lower_bound, upper_bound
from serve.quarantine.record import CellRecord, Change, Status

# Of the state and of all messages between gateway replicas and the shared detector.
VERSION = 4
MOST_CHANGES = 50  # that are remembered

Action = Literal["quarantine", "lift", "pin"]
_ACTIONS: Mapping[Action, tuple[Status, bool]] = {
    "quarantine": ("quarantined", True),
    "lift": ("open", False),
    "pin": ("open", True),
}


@dataclass(frozen=True)
class Terms:
    """The detector's settings and references.

    Attributes:
        references: By model, the pool that the others are compared with when it serves without speculation.
    """

    settings: QuarantineConfig = field(default_factory=QuarantineConfig)
    references: Mapping[str, str] = field(default_factory=dict)


class OutcomeCount(NamedTuple):
    """A number of answers of one cell with the same outcome."""

    cell: Cell
    outcome: str
    answers: int
    suspected: bool


class Detector:
    """Detects bad cells by a sequential test. Pure: time is passed in.

    A pool is compared with its model's reference pool in the same request class. Each of the two bounds is wrong with
    probability at most alpha / 2; the reference's half is split between its current window and the one before.

    Attributes:
        terms: May be replaced at any time.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._records: dict[Cell, CellRecord] = {}
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)

    def absorb(self, counts: Iterable[OutcomeCount], now_s: float) -> list[Change]:
        """Counts answers, tests the cells they belong to, and returns the changes of status.

        A batch is counted as a whole before any test: otherwise the order within a batch would pass for the order of
        the answers.

        Args:
            counts: Answers since the last call.
            now_s: Unix time.
        """
        touched: dict[Cell, CellRecord] = {}
        for cell, outcome, answers, suspected in counts:
            record = self._records.setdefault(cell, CellRecord())
            record.outcomes[outcome] += answers
            record.suspected = suspected
            touched[cell] = record
        changes = [change for cell, record in touched.items() if (change := self._test(cell, record, now_s))]
        for change in changes:
            self._apply(change)
        for record in touched.values():
            if record.outcomes.total() >= self.terms.settings.window:
                record.begin_window()
        return changes

    def order(self, cell: Cell, action: Action, why: str, now_s: float, operator: str = "") -> Change:
        """Carries out an operator's order.

        Args:
            cell: The cell to change.
            action: `quarantine`: out until an operator says otherwise. `pin`: in, likewise. `lift`: in, and tested.
            why: The operator's reason.
            now_s: Unix time.
            operator: Id of the operator's key.
        """
        status, held = _ACTIONS[action]
        change = Change(cell, status, "operator", now_s, why, held, operator=operator)
        self._apply(change)
        return change

    def changes(self) -> list[Change]:
        """Returns the last changes, newest first."""
        return list(self._changes)[::-1]

    def quarantined(self) -> dict[Cell, QuarantineReason]:
        """Returns the cells in quarantine, with the reasons."""
        return {cell: record.reason for cell, record in self._records.items() if record.status == "quarantined"}

    def why(self, cell: Cell) -> str:
        """Returns the reason for the cell's current status; empty if it never changed."""
        return self._records.get(cell, CellRecord()).why

    def view(self) -> list[dict[str, Any]]:
        """Returns every record with its bounds, for operators."""
        return [self._row(cell, record) for cell, record in sorted(self._records.items())]

    def as_dict(self) -> dict[str, Any]:
        """Returns the whole state as plain values, fit for JSON."""
        entries = [{"cell": list(cell), **record.as_dict()} for cell, record in self._records.items()]
        return {"version": VERSION, "entries": entries, "changes": [change.as_dict() for change in self._changes]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by one from `as_dict`.

        Raises:
            ValueError: The state is of another version.
        """
        if state.get("version") != VERSION:
            raise ValueError(f"the quarantine state has version {state.get('version')!r}; expected version {VERSION}")
        self._records = {
            Cell(*entry["cell"]): CellRecord.from_dict({name: value for name, value in entry.items() if name != "cell"})
            for entry in state["entries"]
        }
        self._changes = deque(map(Change.from_dict, state["changes"]), MOST_CHANGES)

    def _apply(self, change: Change) -> None:
        self._records.setdefault(change.cell, CellRecord()).apply(change)
        self._changes.append(change)

    def _test(self, cell: Cell, record: CellRecord, now_s: float) -> Change | None:
        reference = self._reference(cell)
        if reference is None or record.held:
            return None
        if record.status == "open":
            status: Status = "quarantined"
            why = self._worse(record, reference)
        else:
            status = "open"
            why = self._recovered(record, reference)
        if why is None:
            return None
        return Change(cell, status, "test", now_s, why, answers=record.outcomes.total())

    def _reference(self, cell: Cell) -> CellRecord | None:
        """Returns the record to compare with; None for the reference itself and where there is none."""
        pool = self.terms.references.get(cell.model)
        if pool is None or (cell.pool, cell.speculative) == (pool, False):
            return None
        return self._records.get(cell._replace(pool=pool, speculative=False))

    def _worse(self, record: CellRecord, reference: CellRecord) -> str | None:
        settings = self.terms.settings
        low = lower_bound(record.bad, record.good, settings.alpha / 2, _prior(record))
        if low <= settings.margin:
            return None
        windows = [(reference.bad, reference.good)]
        if reference.before:
            windows.append(reference.before)
        high = min(upper_bound(bad, good, settings.alpha / 4) for bad, good in windows)
        if low <= high + settings.margin:
            return None
        rate = f"{record.bad} of {record.bad + record.good} answers bad, so at least {low:.1%}"
        return f"{rate}; the reference pool at most {high:.1%}"

    def _recovered(self, record: CellRecord, reference: CellRecord) -> str | None:
        settings = self.terms.settings
        high = upper_bound(record.bad, record.good, settings.return_alpha / 2)
        bad, good = reference.before or (reference.bad, reference.good)
        low = lower_bound(bad, good, settings.return_alpha / 2)
        if high >= low + settings.tolerance:
            return None
        return f"{record.bad} of {record.bad + record.good} probes bad, so at most {high:.1%}"

    def _row(self, cell: Cell, record: CellRecord) -> dict[str, Any]:
        alpha = self.terms.settings.alpha / 2
        total = record.outcomes.total()
        return {
            **cell._asdict(),
            "status": record.status,
            "held": record.held,
            "by": record.by,
            "since_s": record.since_s,
            "why": record.why,
            "answers": total,
            "bad": record.bad,
            "clean_rate": record.good / total if total else None,
            "bad_rate_at_least": lower_bound(record.bad, record.good, alpha, _prior(record)),
            "bad_rate_at_most": upper_bound(record.bad, record.good, alpha),
            "outcomes": dict(record.outcomes),
            "suspected": record.suspected,
            "reference": (cell.pool, cell.speculative) == (self.terms.references.get(cell.model), False),
        }


def _prior(record: CellRecord) -> Prior:
    return SUSPECTED if record.suspected else UNSUSPECTED
