"""One gateway replica's counts and its copy of the shared detector.

Counts are reported to the detector. While it can't be reached, the replica decides by its own counts.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from policies import Cell
from serve.quarantine.detector import Detector, DetectorTerms, EchoCount, OutcomeCount, TrialCount
from serve.quarantine.messages import Counts, DetectorState, Order
from serve.shared.link import Link
from serve.shared.report import Reporter

log = logging.getLogger("ray.serve.specgate.quarantine")

_AGAIN_S = 0.25
_Numbers = Counter[tuple[Cell, str, float | None]]  # outcomes, and kinds of trials with the share they were drawn by


class SharedDetector:
    """The detector as one replica has it.

    Attributes:
        detector: A copy of the shared detector as of the last answer; while that can't be reached, this replica's own
            counts go into the copy. Its `terms` go along with every report.
    """

    def __init__(
        self, link: Link, suspected: Callable[[Cell], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._suspected = suspected
        self.detector = Detector(DetectorTerms())
        self._new: _Numbers = Counter()
        self._uncollected: _Numbers = Counter()
        self._new_echoes: list[EchoCount] = []
        self._uncollected_echoes: list[EchoCount] = []
        self._reporter: Reporter[Counts, DetectorState] = Reporter(
            lambda report: link.call("take", report),
            self._collect,
            self.detector.restore,
            "the shared quarantine state",
            "Until then this replica judges by its own counts.",
            log,
            clock,
        )

    @property
    def age_s(self) -> float:
        """Seconds since the shared detector last answered, or since the start if it never did."""
        return self._reporter.age_s

    def count(self, cell: Cell, outcome: str) -> None:
        """Counts one answer. Cheap: it runs on the request path."""
        self._new[cell, outcome, None] += 1

    def count_trial(self, cell: Cell, kind: str, own_share: float) -> None:
        """Counts one trial. Cheap: it runs on the request path. The kind is a field of `TrialCounts`."""
        self._new[cell, kind, own_share] += 1

    def count_echo(self, count: EchoCount) -> None:
        """Counts what a pool has copied."""
        self._new_echoes.append(count)

    async def sync(self) -> None:
        """Reports what was counted and adopts the shared state."""
        new, self._new = self._new, Counter()
        self._uncollected += new
        echoes, self._new_echoes = self._new_echoes, []
        self._uncollected_echoes += echoes
        if not await self._reporter.sync():
            counts, trials = self._split(new)
            self.detector.absorb(counts, time.time(), trials, echoes)

    async def order(self, order: Order) -> None:
        """Carries out an operator's order for all replicas.

        Raises:
            SharedStateError: The shared detector can't be reached.
        """
        await self.sync()
        while self._reporter.is_settling:  # it gets its state back before it is changed
            await asyncio.sleep(_AGAIN_S)
            await self.sync()
        self._reporter.adopt(await self._link.call("order", order, self.detector.terms))

    def preview(self, order: Order) -> Detector:
        """Returns the detector as an order would leave it."""
        detector = Detector(self.detector.terms)
        detector.restore(self.detector.as_dict())
        detector.order(order.cell, order.action, order.why, time.time(), order.operator)
        return detector

    def _collect(self) -> Counts:
        counts, self._uncollected = self._uncollected, Counter()
        echoes, self._uncollected_echoes = self._uncollected_echoes, []
        return Counts(*self._split(counts), self.detector.terms, tuple(echoes))

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
