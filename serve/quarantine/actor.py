"""The detector that all gateway replicas share, as a small Ray actor off the request path, and the link to it.

An actor that was restarted gets the state back from the replicas; with a state folder, the state outlives the cluster.
"""

import json
import logging
import os
import time
from pathlib import Path

from serve.config.regular_file import open_regular, read_regular, write_whole
from serve.errors import SharedStateError
from serve.quarantine.detector import VERSION, Detector, DetectorTerms
from serve.quarantine.messages import Counts, DetectorState, Order
from serve.quarantine.record import parsed
from serve.shared.link import Link, link_to
from serve.shared.report import SETTLE_S, Acknowledgement, Pending, Register, Report

log = logging.getLogger("ray.serve.specgate.quarantine")

_SAVE_PERIOD_S = 10.0
_MOST_BYTES = 64 * 2**20


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


def connect(application: str | None, state_dir: str | None) -> Link:
    """Returns a link to the detector of a Serve application; see `link_to`. Without a folder, it keeps no file."""
    path = str(Path(state_dir) / f"quarantine-{application or 'local'}.json") if state_dir else None
    settle_s = 0.0 if application is None else SETTLE_S
    return link_to(application, f"quarantine-v{VERSION + 1}", QuarantineActor, path, settle_s)
