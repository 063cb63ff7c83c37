"""What one gateway replica counted and was told: reported to the shared judge, judged alone while that is lost."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from policies import Cell
from serve.errors import SharedStateError
from serve.quarantine.detector import Quarantine, Tally, Terms
from serve.quarantine.judge import Judge, Order, Report, State

log = logging.getLogger("ray.serve.specgate.quarantine")

Counts = Counter[tuple[Cell, str]]


class Ledger:
    """Counts of one replica on their way to the shared judge.

    Attributes:
        known: The judge's state as last told; while it can't be reached, judged on by this replica's own counts. Its
            `terms` go along with every report.

    Args:
        judge: Shared by all replicas.
        suspected: Whether an advisory speaks against a cell.
    """

    def __init__(self, judge: Judge, suspected: Callable[[Cell], bool]) -> None:
        self._judge, self._suspected = judge, suspected
        self.known = Quarantine(Terms())
        self._told: State = self.known.as_dict()
        self._replica, self._number = uuid.uuid4().hex, 0
        self._fresh: Counts = Counter()
        self._backlog: Counts = Counter()
        self._unconfirmed: Report | None = None
        self._alone = False

    def count(self, cell: Cell, outcome: str) -> None:
        """Count one answer; cheap, for the request path."""
        self._fresh[cell, outcome] += 1

    async def sync(self) -> None:
        """Report what was counted since the last call and take on what all replicas know by now. Not reentrant."""
        fresh, self._fresh = self._fresh, Counter()
        self._backlog += fresh
        try:
            self._take(await self._report())
        except SharedStateError as error:
            if not self._alone:
                log.warning("%s Until then this replica judges by its own counts. %r", error, error.__cause__)
            self._alone = True
            self.known.absorb(self._tallies(fresh), time.time())
        else:
            if self._alone:
                log.warning("the shared quarantine state is back")
            self._alone = False

    async def order(self, order: Order) -> None:
        """Have an operator's order carried out for all replicas.

        Raises:
            SharedStateError: The shared judge can't be reached.
        """
        self._take(await self._asked(lambda: self._judge.order(order, self.known.terms)))

    async def _report(self) -> State:
        """Send all that is not yet confirmed, in order; the state after the last of it."""
        while True:
            if self._unconfirmed is None:
                self._number += 1
                self._unconfirmed = Report(self._replica, self._number, tuple(self._tallies(self._backlog)))
                self._backlog = Counter()
            report = self._unconfirmed
            state = await self._asked(lambda report=report: self._judge.sync(report, self.known.terms))  # type: ignore[misc]
            self._unconfirmed = None
            if not self._backlog:
                return state

    async def _asked(self, call: Callable[[], Awaitable[State | None]]) -> State:
        state = await call()
        if state is None:  # a judge that was started anew: it gets back the last that it told us
            await self._judge.seed(self._told)
            state = await call()
        if state is None:
            raise SharedStateError("The shared quarantine state was lost twice in a row; try again shortly.")
        return state

    def _take(self, state: State) -> None:
        self._told = state
        self.known.restore(state)

    def _tallies(self, counts: Mapping[tuple[Cell, str], int]) -> Iterable[Tally]:
        return (Tally(cell, outcome, count, self._suspected(cell)) for (cell, outcome), count in counts.items())
