"""Which pools are fit for which requests, from the outcomes of their answers: clean-rates, quarantine and return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from policies import Cell, Finding
from serve.quarantine.confidence import SUSPECTED, UNSUSPECTED, Prior, lower_bound, upper_bound
from serve.quarantine.record import Change, Record, Status

VERSION = 3
"""Of the state and of all that travels between gateway replicas and the shared judge."""

Action = Literal["quarantine", "lift", "pin"]
_ACTIONS: Mapping[Action, tuple[Status, bool]] = {
    "quarantine": ("quarantined", True),
    "lift": ("open", False),
    "pin": ("open", True),
}


@dataclass(frozen=True, kw_only=True)
class QuarantineSettings:
    """How pools are judged.

    Attributes:
        alpha: Chance, for each window of answers, that a pool no worse than the reference is quarantined.
        margin: By how much a pool's rate of bad answers must certainly exceed the reference's.
        window: Answers after which counting begins anew, so that an old record can't hide a new fault.
        return_alpha: Chance that a pool returns although it is worse than the reference by `tolerance`.
        tolerance: How much worse than the reference a pool may be to return.
    """

    alpha: float = 0.001
    margin: float = 0.0
    window: int = 2000
    return_alpha: float = 0.05
    tolerance: float = 0.05


@dataclass(frozen=True)
class Terms:
    """What a judge goes by.

    Attributes:
        references: By model, the pool that, without speculation, its others are compared with.
    """

    settings: QuarantineSettings = field(default_factory=QuarantineSettings)
    references: Mapping[str, str] = field(default_factory=dict)


class Tally(NamedTuple):
    """Some answers of one cell that were counted."""

    cell: Cell
    outcome: str
    answers: int
    suspected: bool


class Quarantine:
    """The judge of all pools. Pure: time comes as an argument.

    A pool is compared with its model's reference pool in the same request class. Its own bound and the reference's are
    each wrong with at most half of alpha; the reference's half is shared by its present window and the one before.

    Attributes:
        terms: How to judge; may be replaced at any time.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._records: dict[Cell, Record] = {}

    def absorb(self, tallies: Iterable[Tally], now_s: float) -> list[Change]:
        """Count answers, then judge the cells they belong to; the changes of status that follow.

        What comes together is counted together: judged one by one, the order within a batch would pass for the order
        of the answers.

        Args:
            tallies: What was counted since the last call.
            now_s: Unix time.
        """
        touched: dict[Cell, Record] = {}
        for cell, outcome, answers, suspected in tallies:
            record = touched[cell] = self._records.setdefault(cell, Record())
            record.outcomes[outcome] += answers
            record.suspected = suspected
        changes = [change for cell, record in touched.items() if (change := self._judge(cell, record, now_s))]
        for change in changes:
            self._records[change.cell].change(change)
        for record in touched.values():
            if record.outcomes.total() >= self.terms.settings.window:
                record.begin_window()
        return changes

    def order(self, cell: Cell, action: Action, why: str, now_s: float) -> Change:
        """An operator's word.

        Args:
            cell: What it is about.
            action: `quarantine`: out until an operator says otherwise. `pin`: in, likewise. `lift`: in, and judged.
            why: The operator's reason.
            now_s: Unix time.
        """
        status, held = _ACTIONS[action]
        change = Change(cell, status, "operator", now_s, why, held)
        self._records.setdefault(cell, Record()).change(change)
        return change

    def quarantined(self) -> dict[Cell, Finding]:
        """What is out, and why."""
        return {cell: record.finding for cell, record in self._records.items() if record.status == "quarantined"}

    def why(self, cell: Cell) -> str:
        """The reason for the cell's present status; empty if it never changed."""
        return self._records.get(cell, Record()).why

    def view(self) -> list[dict[str, Any]]:
        """Every record with its bounds, for operators."""
        return [self._shown(cell, record) for cell, record in sorted(self._records.items())]

    def as_dict(self) -> dict[str, Any]:
        """The whole state as plain values, fit for JSON."""
        entries = [{"cell": list(cell), **record.as_dict()} for cell, record in self._records.items()]
        return {"version": VERSION, "entries": entries}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state from `as_dict` in place of what is known.

        Raises:
            ValueError: If the state is of another version.
        """
        if state.get("version") != VERSION:
            raise ValueError(f"a quarantine state of version {state.get('version')!r}; this is version {VERSION}")
        self._records = {
            Cell(*entry["cell"]): Record.from_dict({name: value for name, value in entry.items() if name != "cell"})
            for entry in state["entries"]
        }

    # The test

    def _judge(self, cell: Cell, record: Record, now_s: float) -> Change | None:
        reference = self._reference(cell)
        if reference is None or record.held:
            return None
        judge = self._worse if record.status == "open" else self._recovered
        why = judge(record, reference)
        status: Status = "quarantined" if record.status == "open" else "open"
        return Change(cell, status, "test", now_s, why, False, record.outcomes.total()) if why else None

    def _reference(self, cell: Cell) -> Record | None:
        """The record to compare with; None for the reference itself and where there is none."""
        pool = self.terms.references.get(cell.model)
        if pool is None or (cell.pool, cell.speculative) == (pool, False):
            return None
        return self._records.get(cell._replace(pool=pool, speculative=False))

    def _worse(self, record: Record, reference: Record) -> str | None:
        settings = self.terms.settings
        low = lower_bound(record.bad, record.good, settings.alpha / 2, _prior(record))
        if low <= settings.margin:
            return None
        windows = [(reference.bad, reference.good), *([reference.before] if reference.before else [])]
        high = min(upper_bound(bad, good, settings.alpha / 4) for bad, good in windows)
        if low <= high + settings.margin:
            return None
        seen = f"{record.bad} of {record.bad + record.good} answers bad, so at least {low:.1%}"
        return f"{seen}; the reference pool at most {high:.1%}"

    def _recovered(self, record: Record, reference: Record) -> str | None:
        settings = self.terms.settings
        high = upper_bound(record.bad, record.good, settings.return_alpha / 2)
        bad, good = reference.before or (reference.bad, reference.good)
        low = lower_bound(bad, good, settings.return_alpha / 2)
        if high >= low + settings.tolerance:
            return None
        return f"{record.bad} of {record.bad + record.good} probes bad, so at most {high:.1%}"

    def _shown(self, cell: Cell, record: Record) -> dict[str, Any]:
        half = self.terms.settings.alpha / 2
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
            "bad_rate_at_least": lower_bound(record.bad, record.good, half, _prior(record)),
            "bad_rate_at_most": upper_bound(record.bad, record.good, half),
            "outcomes": dict(record.outcomes),
            "suspected": record.suspected,
            "reference": (cell.pool, cell.speculative) == (self.terms.references.get(cell.model), False),
        }


def _prior(record: Record) -> Prior:
    return SUSPECTED if record.suspected else UNSUSPECTED
