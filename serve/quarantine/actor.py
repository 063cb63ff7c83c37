"""The detector that all gateway replicas share: a small Ray actor off the request path, and the clients that reach it.

The actor is detached, so it outlives the gateway's replicas and redeployments. If it dies, Ray restarts it, and the
first replica to report returns the last state it received. With a state folder, the state outlives the cluster too.
"""

import json
import logging
import os
import time
from pathlib import Path

from serve.quarantine.detector import VERSION, Detector, Terms
from serve.quarantine.messages import CountReport, DetectorClient, DetectorState, Order
from serve.shared_actor import SharedActor

log = logging.getLogger("ray.serve.specgate.quarantine")

_SAVE_PERIOD_S = 10.0
_MAX_REPLICAS = 1024  # whose last report's number is remembered


class QuarantineActor:
    """The shared state. Runs as a Ray actor; without Ray, a plain object does as well.

    Args:
        path: File that keeps the state; None keeps it in memory only.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = Path(path) if path else None
        self._detector: Detector | None = None
        self._last_numbers: dict[str, int] = {}
        self._saved_s = 0.0
        if self._path is not None:
            self._load(self._path)

    def sync(self, report: CountReport, terms: Terms) -> DetectorState | None:
        """Counts a report unless it was counted before; returns the state, None if there is none yet."""
        if self._detector is None:
            return None
        self._detector.terms = terms
        if report.number > self._last_numbers.pop(report.replica, 0):
            changes = self._detector.absorb(report.counts, time.time(), report.trials)
            self._save(at_once=bool(changes))
        self._last_numbers[report.replica] = report.number
        if len(self._last_numbers) > _MAX_REPLICAS:
            del self._last_numbers[next(iter(self._last_numbers))]
        return self._state(self._detector)

    def order(self, order: Order, terms: Terms) -> DetectorState | None:
        """Carries out an operator's order; returns the state, None if there is none yet."""
        if self._detector is None:
            return None
        self._detector.terms = terms
        self._detector.order(order.cell, order.action, order.why, time.time(), order.operator)
        self._save(at_once=True)
        return self._state(self._detector)

    def seed(self, state: DetectorState) -> None:
        """Adopts a state, unless another replica was quicker."""
        if self._detector is not None:
            return
        detector = Detector(Terms())
        detector.restore(state)
        self._last_numbers = dict(state.get("reports", {}))
        self._detector = detector
        self._save(at_once=True)

    def _load(self, path: Path) -> None:
        """Adopts the state in a file; moves a file that can't be used out of the way."""
        try:
            self.seed(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            aside = path.with_suffix(".unreadable")
            log.error("the quarantine state in %s can't be used (%r); the file is kept as %s", path, error, aside)
            os.replace(path, aside)

    def _state(self, detector: Detector) -> DetectorState:
        return {**detector.as_dict(), "reports": dict(self._last_numbers)}

    def _save(self, at_once: bool) -> None:
        if self._path is None or self._detector is None:
            return
        if not at_once and time.time() - self._saved_s <= _SAVE_PERIOD_S:
            return
        self._saved_s = time.time()
        draft = self._path.with_suffix(".draft")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(self._state(self._detector)), encoding="utf-8")
            os.replace(draft, self._path)
        except OSError as error:
            log.error("the quarantine state can't be saved in %s: %s", self._path, error)


class LocalDetector:
    """The detector within this process, for a gateway without Ray that has one replica only.

    Args:
        actor: The state.
    """

    def __init__(self, actor: QuarantineActor) -> None:
        self._actor = actor

    async def sync(self, report: CountReport, terms: Terms) -> DetectorState | None:
        return self._actor.sync(report, terms)

    async def order(self, order: Order, terms: Terms) -> DetectorState | None:
        return self._actor.order(order, terms)

    async def seed(self, state: DetectorState) -> None:
        self._actor.seed(state)


class RayDetector:
    """The detector in the Ray cluster, started by the first replica that needs it.

    Args:
        application: Name of the Serve application: each has its own detector.
        path: As of `QuarantineActor`.
    """

    def __init__(self, application: str, path: str | None) -> None:
        self._actor = SharedActor(f"{application}-quarantine-v{VERSION}", QuarantineActor, path)

    async def sync(self, report: CountReport, terms: Terms) -> DetectorState | None:
        return await self._actor.call("sync", report, terms)  # type: ignore[no-any-return]

    async def order(self, order: Order, terms: Terms) -> DetectorState | None:
        return await self._actor.call("order", order, terms)  # type: ignore[no-any-return]

    async def seed(self, state: DetectorState) -> None:
        await self._actor.call("seed", state)


def connect(application: str | None, state_dir: str | None) -> DetectorClient:
    """Returns a client of the detector to report to.

    Args:
        application: Name of the Serve application; None outside Ray, where this replica has a detector of its own.
        state_dir: Folder that keeps the state; None keeps it in memory only.
    """
    path = str(Path(state_dir) / f"quarantine-{application or 'local'}.json") if state_dir else None
    return RayDetector(application, path) if application else LocalDetector(QuarantineActor(path))
