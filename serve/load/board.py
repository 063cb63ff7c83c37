"""The board on which gateway replicas leave figures for each other: the pattern of quarantine's detector.

Figures of the load, and what tenants were given in each pool, so that they share it by weight over all replicas.
"""

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from serve.errors import SharedStateError
from serve.load.live_load import LiveLoad
from serve.load.report import LoadReport, PoolKey, total
from serve.routing.fair_queue import QueueReport
from serve.routing.pool import Pool
from serve.shared_actor import SharedActor

log = logging.getLogger("ray.serve.specgate.load")

QueueReports = Mapping[PoolKey, QueueReport]

PERIOD_S = 1.0
_VERSION = 2
_FRESH_S = 5.0  # a replica that has not reported for so long is gone, and its requests with it


class LoadBoard:
    """The last report of each gateway replica. Runs as a Ray actor; without Ray, a plain object does as well.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, LoadReport, QueueReports]] = {}
        # What was given, for each replica that has not heard it yet.
        self._unheard: dict[str, dict[PoolKey, defaultdict[tuple[int, str], float]]] = {}

    def sync(self, replica: str, report: LoadReport, queues: QueueReports) -> tuple[LoadReport, QueueReports]:
        """Keeps a replica's report.

        Args:
            replica: Whose.
            report: Its load.
            queues: Those of its pools.

        Returns:
            The load of all others together, and what their queues want now and have given since the replica's last
            call.
        """
        now_s = self._clock()
        self._reports[replica] = (now_s, report, queues)
        self._reports = {name: entry for name, entry in self._reports.items() if now_s - entry[0] < _FRESH_S}
        self._unheard = {name: self._unheard.get(name, {}) for name in self._reports}
        heard, self._unheard[replica] = self._unheard[replica], {}
        others = [entry for name, entry in self._reports.items() if name != replica]
        for name in self._reports.keys() - {replica}:
            for pool, queue in queues.items():
                given = self._unheard[name].setdefault(pool, defaultdict(float))
                for place, cost in queue.given.items():
                    given[place] += cost
        wanted = [queues for _, _, queues in others]
        told = {pool: QueueReport(heard.get(pool, {}), _wanted(pool, wanted)) for pool in queues}
        return total(load for _, load, _ in others), told


def _wanted(pool: PoolKey, reports: Sequence[QueueReports]) -> tuple[int, ...]:
    each = [report[pool].wanted for report in reports if pool in report]
    return tuple(map(sum, zip(*filter(None, each), strict=True)))


class SharedLoad:
    """One gateway replica's side of the board.

    Args:
        load: Reports, and hears of the others; None if nobody wants to know the load.
        pools: All of them.
        application: Name of the Serve application; None outside Ray, where this replica is the only one.
    """

    def __init__(self, load: LiveLoad | None, pools: Mapping[PoolKey, Pool], application: str | None) -> None:
        self._load = load
        self._pools = pools
        self._replica = uuid.uuid4().hex
        self._actor = SharedActor(f"{application}-load-v{_VERSION}", LoadBoard) if application else None
        self._reached = True

    async def run(self) -> None:
        """Keeps the load true to the cluster, to the others and to what was learned; every second, forever."""
        while True:
            if self._load is not None:
                for key, pool in self._pools.items():
                    self._load.set_engines(key, pool.replicas)
            await self.sync()
            if self._load is not None:
                self._load.check()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Exchanges figures; while the board can't be reached, this replica goes by its share of all requests."""
        report = self._load.report() if self._load is not None else LoadReport()
        queues = {key: pool.report() for key, pool in self._pools.items()}
        heard: QueueReports = {}
        if self._actor is not None:
            others: LoadReport | None = None
            try:
                others, heard = await self._actor.call("sync", self._replica, report, queues)
                self._reached = True
            except SharedStateError as error:
                if self._reached:
                    log.warning("other gateway replicas' load is unknown: %s", error.message)
                self._reached = False
            if self._load is not None:
                self._load.hear(others)
        for key, pool in self._pools.items():
            pool.hear(heard.get(key, QueueReport()))
