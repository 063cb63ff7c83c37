"""Messages between gateway replicas and the shared detector, and the client's interface to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from policies import Cell
from serve.quarantine.detector import Action, OutcomeCount, Terms, TrialCount

DetectorState = Mapping[str, Any]  # `Detector.as_dict`, and the number of each replica's last report


@dataclass(frozen=True)
class CountReport:
    """Outcomes and trials that one replica counted. The number lets a report that is sent twice count once."""

    replica: str
    number: int
    counts: tuple[OutcomeCount, ...]
    trials: tuple[TrialCount, ...] = ()


class Order(NamedTuple):
    """An operator's order about one cell, its reason, and the id of the operator's key."""

    cell: Cell
    action: Action
    why: str
    operator: str = ""


class DetectorClient(Protocol):
    """A replica's view of the shared detector. Every call raises `SharedStateError` while it can't be reached.

    `sync` and `order` return the detector's whole state, or None if it was just started and needs to be seeded.
    """

    async def sync(self, report: CountReport, terms: Terms) -> DetectorState | None:
        """Counts a report."""
        ...

    async def order(self, order: Order, terms: Terms) -> DetectorState | None:
        """Carries out an order."""
        ...

    async def seed(self, state: DetectorState) -> None:
        """Gives a state to a detector that has none."""
        ...
