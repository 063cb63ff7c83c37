"""The detector that all gateway replicas share: a small Ray actor off the request path, and a replica's side of it.

Replicas report what they counted. An actor that was restarted gets the state back from them; with a state folder, the
state outlives the cluster. While it can't be reached, a replica decides by its own counts.
"""

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from policies import Cell
from serve.config.regular_file import open_regular, read_regular, write_whole
from serve.errors import SharedStateError
from serve.quarantine.detector import (
    Counts,
    Detector,
    DetectorState,
    DetectorTerms,
    EchoCount,
    Order,
    OutcomeCount,
    TrialCount,
    parsed,
)
from serve.shared.link import Link, link_to
from serve.shared.report import SETTLE_S, Acknowledgement, Pending, Register, Report, Reporter

log = logging.getLogger("ray.serve.specgate.quarantine")

_VERSION = 8  # of the messages and of where their classes stand: an older actor can't read them
_SAVE_PERIOD_S = 10.0
_MOST_BYTES = 64 * 2**20
_AGAIN_S = 0.25
_Numbers = Counter[tuple[Cell, str, float | None]]  # outcomes, and kinds of trials with the share they were drawn by


class QuarantineActor:
    """The shared state. Runs as a Ray actor; without Ray, a plain object does as well. Without a file, the state is
    kept in memory only.
    """

    def __init__(self, path: str | None = None, settle_s: float = 0.0) -> None:
        self._path = Path(path) if path else None
        self._detector = Detector(DetectorTerms())
        self._saved_s = 0.0
        self._saved_version = 0
        self._has_news = False  # a change of status, which is saved at once
        self._register = Register(self._book, self._answer, self._detector.restore, settle_s)
        if self._path is not None:
            self._load(self._path)

    async def take(self, report: Report[Counts, DetectorState]) -> Acknowledgement[DetectorState] | Pending:
        """Counts a report unless it was counted before, and returns the state."""
        answer = await self._register.take(report)
        if isinstance(answer, Acknowledgement):
            self._save(answer)
        return answer

    def order(self, order: Order, terms: DetectorTerms) -> Acknowledgement[DetectorState]:
        """Carries out an operator's order and returns the state.

        Raises:
            SharedStateError: The detector has just begun, and replicas have not sent it the state yet.
        """
        if not self._register.has_begun:
            raise SharedStateError("The shared quarantine state has just begun; try again shortly.", retry_after_s=1.0)
        self._detector.terms = terms
        self._detector.order(order.cell, order.action, order.why, time.time(), order.operator)
        self._has_news = True
        answer = self._register.changed(self._detector.as_dict())
        self._save(answer)
        return answer

    def _book(self, report: Report[Counts, DetectorState]) -> None:
        counts = report.content
        self._detector.terms = counts.terms
        if self._detector.absorb(counts.counts, time.time(), counts.trials, counts.echoes):
            self._has_news = True

    async def _answer(self, _: Report[Counts, DetectorState]) -> DetectorState:
        return self._detector.as_dict()

    def _load(self, path: Path) -> None:
        """Offers the state in a file; moves a file that can't be used out of the way."""
        try:
            kept = parsed(read_regular(path, _MOST_BYTES))
            Detector(DetectorTerms()).restore(kept)
            self._register.offer(Acknowledgement(0, kept["revision"], kept, kept["reports"]))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._set_aside(path, error)

    def _set_aside(self, path: Path, why: Exception) -> None:
        aside = path.with_suffix(".unreadable")
        try:
            os.replace(path, aside)
            where = f"the file is kept as {aside}"
        except OSError as error:  # the disk can only be read, or another folder is in that place
            where = f"nor can it be put aside: {error}"
        log.error("the quarantine state in %s can't be used (%s); %s", path, why, where)

    def _save(self, answer: Acknowledgement[DetectorState]) -> None:
        is_due = self._has_news or time.time() - self._saved_s > _SAVE_PERIOD_S
        if self._path is None or not is_due or answer.version <= self._saved_version:
            return
        self._saved_s, self._saved_version, self._has_news = time.time(), answer.version, False
        draft = self._path.with_suffix(".draft")
        text = json.dumps({**answer.state, "revision": answer.version, "reports": answer.booked})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open_regular(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                write_whole(file, text.encode())
            os.replace(draft, self._path)
        except OSError as error:
            log.error("the quarantine state can't be saved in %s: %s; make room there or mend it", self._path, error)


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


def connect(application: str | None, state_dir: str | None) -> Link:
    """Returns a link to the detector of a Serve application; see `link_to`. Without a folder, it keeps no file."""
    path = str(Path(state_dir) / f"quarantine-{application or 'local'}.json") if state_dir else None
    settle_s = 0.0 if application is None else SETTLE_S
    return link_to(application, f"quarantine-v{_VERSION}", QuarantineActor, path, settle_s)
