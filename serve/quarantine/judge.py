"""What replicas and the shared judge say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from policies import Cell
from serve.quarantine.detector import Action, Tally, Terms

State = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """What one replica counted, numbered: sent again after a failure, it is counted once."""

    replica: str
    number: int
    tallies: tuple[Tally, ...]


class Order(NamedTuple):
    """What an operator wants done with a cell, and why."""

    cell: Cell
    action: Action
    why: str


class Judge(Protocol):
    """The shared judge as a replica sees it. Every call raises `SharedStateError` while it can't be reached.

    Each answers with its whole state, or with None if it has none: it is new, and wants to be seeded.
    """

    async def sync(self, report: Report, terms: Terms) -> State | None:
        """Count a report."""
        ...

    async def order(self, order: Order, terms: Terms) -> State | None:
        """Carry out an order."""
        ...

    async def seed(self, state: State) -> None:
        """Give a state to a judge that has none."""
        ...
