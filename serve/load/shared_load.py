"""The load over all gateway replicas: the actor that they leave their figures with, and a replica's side of it.

Figures of the load; what tenants were given in each pool, so that they share it by weight over all replicas; and which
prompts engines were sent, so that a conversation is found again whichever replica it comes to. The latter gateways
outside Ray tell each other as well, by a store.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
_VERSION = 6  # of the figures and of where their classes stand: an older actor can't read them
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
            pool: PoolReport(QueueReport(news[pool].given, _wanted(pool, others)), newest(list(news[pool].sent)))
            for pool in report.content.pools
        }
        return Figures(total(figures.load for figures in others), pools)


def _wanted(pool: PoolKey, others: Sequence[Figures]) -> tuple[int, ...]:
    wanted = [figures.pools[pool].queue.wanted for figures in others if pool in figures.pools]
    return tuple(map(sum, zip(*filter(None, wanted), strict=True)))


Tell = Callable[[str, bytes], Awaitable[Sequence[bytes]]]
_Sent = list[tuple[PoolKey, list[tuple[str, bytes]]]]
_sent_in = msgspec.msgpack.Decoder(_Sent).decode


class OutsideBoard(LoadBoard):
    """The board of a gateway without Ray, which has its figures alone, but hears which prompts others have sent. `tell`
    leaves a replica's message to them, if it is not empty, and returns theirs since it was called last.
    """

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    async def _answer(self, report: Report[Figures, Figures]) -> Figures:
        own: _Sent = [(key, list(pool.sent)) for key, pool in report.content.pools.items() if pool.sent]
        told = await self._tell(report.replica, msgspec.msgpack.encode(own) if own else b"")
        figures = await super()._answer(report)
        sent = defaultdict[PoolKey, list[tuple[str, bytes]]](list)
        for key, prompts in (each for message in told for each in _sent_in(message)):
            sent[key] += prompts
        pools = {key: pool._replace(sent=newest(sent[key])) for key, pool in figures.pools.items()}
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
