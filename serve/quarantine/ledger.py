"""One gateway replica's counts and its copy of the shared state.

Counts are reported to the shared detector. While it can't be reached, the replica decides by its own counts.
"""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from policies import Cell
from serve.errors import SharedStateError
from serve.quarantine.detector import Detector, OutcomeCount, Terms, TrialCount
from serve.quarantine.messages import CountReport, DetectorClient, DetectorState, Order

log = logging.getLogger("ray.serve.specgate.quarantine")

Counts = Counter[tuple[Cell, str, float | None]]  # outcomes, and kinds of trials with the share they were drawn by


class Ledger:
    """One replica's counts on their way to the shared detector.

    Attributes:
        detector: A copy of the shared detector as of the last report; while that can't be reached, this replica's own
            counts go into the copy. Its `terms` go along with every report.

    Args:
        client: Reaches the detector that all replicas share.
        suspected: Tells if an advisory warns of a cell.
    """

    def __init__(self, client: DetectorClient, suspected: Callable[[Cell], bool]) -> None:
        self._client = client
        self._suspected = suspected
        self.detector = Detector(Terms())
        self._last_state: DetectorState = self.detector.as_dict()
        self._replica = uuid.uuid4().hex
        self._last_number = 0
        self._new: Counts = Counter()
        self._backlog: Counts = Counter()
        self._unconfirmed: CountReport | None = None
        self._alone = False
        self._answered_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the shared detector last answered, or since the start if it never did."""
        return time.monotonic() - self._answered_s

    def count(self, cell: Cell, outcome: str) -> None:
        """Counts one answer. Cheap: it runs on the request path."""
        self._new[cell, outcome, None] += 1

    def count_trial(self, cell: Cell, kind: str, own_share: float) -> None:
        """Counts one trial. Cheap: it runs on the request path.

        Args:
            cell: What is tested.
            kind: One of `Trials`.
            own_share: Chance with which the cell was to answer first.
        """
        self._new[cell, kind, own_share] += 1

    async def sync(self) -> None:
        """Reports what was counted since the last call and adopts the shared state. Not reentrant."""
        new = self._new
        self._new = Counter()
        self._backlog += new
        try:
            self._adopt(await self._report())
        except SharedStateError as error:
            if not self._alone:
                log.warning("%s Until then this replica judges by its own counts. %r", error, error.__cause__)
            self._alone = True
            counts, trials = self._split(new)
            self.detector.absorb(counts, time.time(), trials)
        else:
            if self._alone:
                log.warning("the shared quarantine state is back")
            self._alone = False

    async def order(self, order: Order) -> None:
        """Carries out an operator's order for all replicas.

        Raises:
            SharedStateError: The shared detector can't be reached.
        """
        self._adopt(await self._call_or_reseed(partial(self._client.order, order, self.detector.terms)))

    async def _report(self) -> DetectorState:
        """Sends everything not yet confirmed, in order, and returns the state after the last report."""
        while True:
            if self._unconfirmed is None:
                self._last_number += 1
                self._unconfirmed = CountReport(self._replica, self._last_number, *self._split(self._backlog))
                self._backlog = Counter()
            state = await self._call_or_reseed(partial(self._client.sync, self._unconfirmed, self.detector.terms))
            self._unconfirmed = None
            if not self._backlog:
                return state

    async def _call_or_reseed(self, call: Callable[[], Awaitable[DetectorState | None]]) -> DetectorState:
        """Calls the detector; if it has been restarted without its state, returns the last one to it and calls again.

        Raises:
            SharedStateError: The detector can't be reached, or lost its state twice in a row.
        """
        state = await call()
        if state is None:
            await self._client.seed(self._last_state)
            state = await call()
        if state is None:
            raise SharedStateError("The shared quarantine state was lost twice in a row; try again shortly.")
        return state

    def _adopt(self, state: DetectorState) -> None:
        self._last_state = state
        self._answered_s = time.monotonic()
        self.detector.restore(state)

    def _split(
        self, counts: Mapping[tuple[Cell, str, float | None], int]
    ) -> tuple[tuple[OutcomeCount, ...], tuple[TrialCount, ...]]:
        outcomes, trials = [], []
        for (cell, name, own_share), number in counts.items():
            if own_share is None:
                outcomes.append(OutcomeCount(cell, name, number))
            else:
                trials.append(TrialCount(cell, own_share, name, number, self._suspected(cell)))
        return tuple(outcomes), tuple(trials)
