"""The judge that all gateway replicas share: one small Ray actor, off the request path, and how replicas talk to it.

It is detached, so it outlives the gateway's replicas and a redeployment. Ray restarts it when it dies; whoever then
reports first gives it back the last state that it had told. With a folder for the state it outlives the cluster too.
"""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from serve.errors import SharedStateError
from serve.quarantine.detector import VERSION, Quarantine, Terms
from serve.quarantine.judge import Judge, Order, Report, State

log = logging.getLogger("ray.serve.specgate.quarantine")


_NAMESPACE = "specgate"


_CALL_TIMEOUT_S = 5.0


_SAVE_PERIOD_S = 10.0


_MOST_REPLICAS = 1024


class QuarantineActor:
    """The shared state. Runs as a Ray actor; a plain object does as well.

    Args:
        path: File that keeps the state; None keeps it in memory alone.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = Path(path) if path else None
        self._judge: Quarantine | None = None
        self._reports: dict[str, int] = {}
        self._saved_s = 0.0
        if self._path is not None:
            self._load(self._path)

    def sync(self, report: Report, terms: Terms) -> State | None:
        """Count a report that was not counted yet."""
        if self._judge is None:
            return None
        self._judge.terms = terms
        if report.number > self._reports.pop(report.replica, 0):
            changes = self._judge.absorb(report.tallies, time.time())
            self._save(at_once=bool(changes))
        self._reports[report.replica] = report.number
        if len(self._reports) > _MOST_REPLICAS:
            del self._reports[next(iter(self._reports))]
        return self._state(self._judge)

    def order(self, order: Order, terms: Terms) -> State | None:
        """Carry out an operator's order."""
        if self._judge is None:
            return None
        self._judge.terms = terms
        self._judge.order(order.cell, order.action, order.why, time.time())
        self._save(at_once=True)
        return self._state(self._judge)

    def seed(self, state: State) -> None:
        """Take on a state, unless another replica was quicker."""
        if self._judge is not None:
            return
        judge = Quarantine(Terms())
        judge.restore(state)
        self._judge, self._reports = judge, dict(state.get("reports", {}))
        self._save(at_once=True)

    def _load(self, path: Path) -> None:
        """Take on the state in a file; one that can't be used is moved out of the way."""
        try:
            self.seed(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            aside = path.with_suffix(".unreadable")
            log.error("the quarantine's state in %s can't be used (%r); it is kept as %s", path, error, aside)
            os.replace(path, aside)

    def _state(self, judge: Quarantine) -> State:
        return {**judge.as_dict(), "reports": dict(self._reports)}

    def _save(self, at_once: bool) -> None:
        if self._path is None or self._judge is None or not (at_once or time.time() - self._saved_s > _SAVE_PERIOD_S):
            return
        self._saved_s = time.time()
        draft = self._path.with_suffix(".draft")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(self._state(self._judge)), encoding="utf-8")
            os.replace(draft, self._path)
        except OSError as error:
            log.error("the quarantine's state can't be kept in %s: %s", self._path, error)


class LocalJudge:
    """The judge within this process: where there is no Ray, and one replica is all there are.

    Args:
        actor: The state.
    """

    def __init__(self, actor: QuarantineActor) -> None:
        self._actor = actor

    async def sync(self, report: Report, terms: Terms) -> State | None:
        return self._actor.sync(report, terms)

    async def order(self, order: Order, terms: Terms) -> State | None:
        return self._actor.order(order, terms)

    async def seed(self, state: State) -> None:
        self._actor.seed(state)


class RayJudge:
    """The judge in the Ray cluster, started by whoever needs it first.

    Args:
        application: Name of the Serve application: each has its own judge.
        path: As of `QuarantineActor`.
    """

    def __init__(self, application: str, path: str | None) -> None:
        # The version is in the name: a detached actor runs the code that it was started with.
        self._name = f"{application}-quarantine-v{VERSION}"
        self._path = path
        self._actor: Any = None

    async def sync(self, report: Report, terms: Terms) -> State | None:
        return await self._call("sync", report, terms)  # type: ignore[no-any-return]

    async def order(self, order: Order, terms: Terms) -> State | None:
        return await self._call("order", order, terms)  # type: ignore[no-any-return]

    async def seed(self, state: State) -> None:
        await self._call("seed", state)

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._find_or_start)
                return await getattr(self._actor, method).remote(*args)
        except (RayError, TimeoutError) as error:
            self._actor = None
            raise SharedStateError(
                "The state that the gateway's replicas share can't be reached; try again shortly.", None, None, 1.0
            ) from error

    def _find_or_start(self) -> Any:
        options = {"num_cpus": 0, "max_restarts": -1, "lifetime": "detached", "get_if_exists": True}
        return ray.remote(QuarantineActor).options(name=self._name, namespace=_NAMESPACE, **options).remote(self._path)


def connect(application: str | None, state_dir: str | None) -> Judge:
    """The judge to report to.

    Args:
        application: Name of the Serve application; None outside Ray: then the judge is one's own.
        state_dir: Folder that keeps the state; None keeps it in memory.
    """
    path = str(Path(state_dir) / f"quarantine-{application or 'local'}.json") if state_dir else None
    return RayJudge(application, path) if application else LocalJudge(QuarantineActor(path))
