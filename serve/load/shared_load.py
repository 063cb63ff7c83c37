"""The load over all gateway replicas: the actor that they leave their figures with, and a replica's side of it.

Figures of the load; what tenants were given in each pool, so that they share it by weight over all replicas; and which
prompts engines were sent and what they have to do for them, so that a conversation is found again whichever replica it
comes to, and long prompts do not wait for each other. The latter two gateways outside Ray tell each other as well, by a
store.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from serve.load.learned import LoadReport, PoolKey, total
from serve.load.live_load import AnyLoad
from serve.routing.fair_queue import QueueReport
from serve.routing.pool import Pool, PoolReport
from serve.routing.prefix_placement import newest
from serve.shared.link import Link, LocalLink, link_to
from serve.shared.report import Acknowledgement, Pending, Register, Report, Reporter

log = logging.getLogger("ray.serve.specgate.load")

PERIOD_S = 1.0
_VERSION = 7  # of the figures and of where their classes stand: an older actor can't read them
_FRESH_S = 5.0  # a replica that has not reported for so long is gone, and its requests with it
_MOST_UNDELIVERED = 1024  # prompts for one replica


class _News:
    """What one replica has yet to be told of a pool."""

    def __init__(self) -> None:
        self.given: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.sent: deque[tuple[str, bytes]] = deque(maxlen=_MOST_UNDELIVERED)


class Figures(NamedTuple):
    """The figures of one gateway replica; in an answer, those of all others together."""

    load: LoadReport = LoadReport()
    pools: Mapping[PoolKey, PoolReport] = {}


class LoadBoard:
    """The last report of each gateway replica. Runs as a Ray actor; without Ray, a plain object does as well."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._figures: dict[str, tuple[float, Figures]] = {}
        self._undelivered: dict[str, defaultdict[PoolKey, _News]] = {}  # by replica
        self._register = Register(self._book, self._answer, clock=clock)

    async def take(self, report: Report[Figures, Figures]) -> Acknowledgement[Figures] | Pending:
        """Keeps a replica's figures; returns those of all others together."""
        return await self._register.take(report)

    def _book(self, report: Report[Figures, Figures]) -> None:
        now_s = self._clock()
        self._figures[report.replica] = (now_s, report.content)
        self._figures = {name: entry for name, entry in self._figures.items() if now_s - entry[0] < _FRESH_S}
        self._undelivered = {name: self._undelivered.get(name, defaultdict(_News)) for name in self._figures}
        for name in self._figures.keys() - {report.replica}:
            for pool, own in report.content.pools.items():
                news = self._undelivered[name][pool]
                news.sent.extend(own.sent)
                for place, cost in own.queue.given.items():
                    news.given[place] += cost

    async def _answer(self, report: Report[Figures, Figures]) -> Figures:
        news, self._undelivered[report.replica] = self._undelivered[report.replica], defaultdict(_News)
        others = [figures for name, (_, figures) in self._figures.items() if name != report.replica]
        pools = {
            pool: PoolReport(
                QueueReport(news[pool].given, _wanted(pool, others)),
                newest(list(news[pool].sent)),
                added(figures.pools[pool].doing for figures in others if pool in figures.pools),
            )
            for pool in report.content.pools
        }
        return Figures(total(figures.load for figures in others), pools)


def added(doings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns what replicas have to do for several gateways."""
    every = defaultdict[str, float](float)
    for doing in doings:
        for url, blocks in doing.items():
            every[url] += blocks
    return dict(every)


def _wanted(pool: PoolKey, others: Sequence[Figures]) -> tuple[int, ...]:
    wanted = [figures.pools[pool].queue.wanted for figures in others if pool in figures.pools]
    return tuple(map(sum, zip(*filter(None, wanted), strict=True)))


Tell = Callable[[str, bytes], Awaitable[Sequence[bytes]]]


class _Told(NamedTuple):
    """A message of a gateway without Ray: by pool, what engines were sent, and what they have to do."""

    replica: str
    pools: list[tuple[PoolKey, list[tuple[str, bytes]], dict[str, float]]]


_told_in = msgspec.msgpack.Decoder(_Told).decode


class OutsideBoard(LoadBoard):
    """The board of a gateway without Ray, which has its figures alone, but hears which prompts others have sent, and
    what engines have to do for them. `tell` leaves a replica's message to them, if it is not empty, and returns theirs
    since it was called last.
    """

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._tell = tell
        self._was_busy = False
        self._doing: dict[str, tuple[float, dict[PoolKey, dict[str, float]]]] = {}  # when told, by the other replicas

    async def _answer(self, report: Report[Figures, Figures]) -> Figures:
        own = _Told(
            report.replica,
            [
                (key, list(pool.sent), dict(pool.doing))
                for key, pool in report.content.pools.items()
                if pool.sent or pool.doing
            ],
        )
        told = await self._tell(report.replica, msgspec.msgpack.encode(own) if own.pools or self._was_busy else b"")
        self._was_busy = bool(own.pools)  # that it is no more, is told once
        figures, now_s = await super()._answer(report), self._clock()
        sent = defaultdict[PoolKey, list[tuple[str, bytes]]](list)
        for message in map(_told_in, told):
            self._doing[message.replica] = now_s, {key: doing for key, _, doing in message.pools}
            for key, prompts, _ in message.pools:
                sent[key] += prompts
        self._doing = {name: entry for name, entry in self._doing.items() if now_s - entry[0] < _FRESH_S}
        doings = [doing for _, doing in self._doing.values()]
        pools = {
            key: pool._replace(sent=newest(sent[key]), doing=added(doing.get(key, {}) for doing in doings))
            for key, pool in figures.pools.items()
        }
        return figures._replace(pools=pools)


class SharedLoad:
    """One gateway replica's side of the board."""

    def __init__(self, load: AnyLoad, pools: Mapping[PoolKey, Pool], link: Link) -> None:
        self._load = load
        self._pools = pools
        self._reporter: Reporter[Figures, Figures] = Reporter(
            lambda report: link.call("take", report),
            lambda: Figures(load.report(), {key: pool.report() for key, pool in pools.items()}),
            self._adopt,
            "the board of loads",
            "Until then this replica goes by its share of all requests.",
            log,
        )

    async def run(self) -> None:
        """Keeps the load true to the cluster, to the others and to what was learned; every second, forever."""
        while True:
            for key, pool in self._pools.items():
                self._load.set_engines(key, pool.replicas)
            await self.sync()
            self._load.check()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Exchanges figures; while the board can't be reached, this replica goes by its share of all requests."""
        if not await self._reporter.sync():
            self._load.merge(None)
            for pool in self._pools.values():
                pool.merge(PoolReport())

    def _adopt(self, others: Figures) -> None:
        self._load.merge(others.load)
        for key, pool in self._pools.items():
            pool.merge(others.pools.get(key, PoolReport()))


def connect(application: str | None, tell: Tell | None = None) -> Link:
    """Returns a link to the board of a Serve application; see `link_to`. Outside Ray, a gateway may `tell` others."""
    if application is None and tell is not None:
        return LocalLink(OutsideBoard(tell))
    return link_to(application, f"load-v{_VERSION}", LoadBoard)
