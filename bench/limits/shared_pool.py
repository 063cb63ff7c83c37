"""Tenants that share a full pool, in virtual time: all but clients, engines and Ray's router is the real code."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import quantiles

from lab.simulation.virtual_time import run_in_virtual_time
from serve.limits.answer_meter import Meter
from serve.limits.estimate import Estimates, RequestSize
from serve.limits.usage import Usage
from serve.load.shared_load import PERIOD_S, Figures, LoadBoard
from serve.routing.fair_queue import Asker
from serve.routing.leases import Lease, Leases
from serve.routing.pool import Endpoint, PoolReport
from serve.routing.waiting_room import WaitingTerms
from serve.shared.report import Reporter

log = logging.getLogger(__name__)

_WARM_UP_S = 30.0
_PROMPT_TOKENS = (200, 4000)
_PREFILL_TOKENS_PER_S = 8000.0
_TOKENS_PER_S = 60.0
_MAX_OUTPUT = 1024
_OUTPUT_WEIGHT = 2.0
_PATIENT_S = 3600.0
_MODEL = "m"
_POOL = (_MODEL, "p")


@dataclass(frozen=True)
class Demand:
    """What one tenant asks for.

    Attributes:
        tenant: Its name.
        clients: That ask again at once.
        per_s: Further requests a second, at random times.
        weight: Its share.
        longer: Its answers are longer than others', by this factor.
    """

    tenant: str
    clients: int = 0
    per_s: float = 0.0
    weight: float = 1.0
    longer: float = 1.0


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        slots: Of the pool.
        gateways: Gateway replicas; a request comes to one of them by chance.
        fair: False: in the order of arrival, whoever asks, as before there were tenants.
        shares: Gateway replicas tell each other what tenants were given.
    """

    demands: tuple[Demand, ...]
    slots: int = 32
    gateways: int = 1
    fair: bool = True
    shares: bool = True
    duration_s: float = 60.0
    seed: int = 1


@dataclass
class Outcome:
    """What came of a run, after a warm-up.

    Attributes:
        served: (time, weighted tokens) of every request that ended, by tenant.
        waits_s: Seconds that requests waited for a slot, by tenant.
        busy_s: Seconds of slots that were in use.
    """

    served: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    waits_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy_s: float = 0.0

    def total(self, tenant: str) -> float:
        """Returns the weighted tokens that a tenant was served."""
        return sum(cost for _, cost in self.served[tenant])

    def p95_wait_s(self, tenant: str) -> float:
        """Returns the wait that one request in twenty exceeds."""
        return quantiles(self.waits_s[tenant], n=20)[-1]

    @property
    def answers(self) -> int:
        """Requests that ended."""
        return sum(map(len, self.served.values()))


class _Cluster:
    """The pool's slots, which Ray's routers of all gateway replicas reserve: whose reservation is next is chance."""

    def __init__(self, slots: int, chance: random.Random) -> None:
        self._free = slots
        self._chance = chance
        self._waiting: list[asyncio.Future[None]] = []

    async def reserve(self) -> Lease:
        if not self._free:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._release()
                raise
        else:
            self._free -= 1
        resources = AsyncExitStack()
        resources.callback(self._release)
        return Lease(Endpoint("", None), resources)

    def _release(self) -> None:
        self._waiting = [place for place in self._waiting if not place.done()]
        if self._waiting:
            self._waiting.pop(self._chance.randrange(len(self._waiting))).set_result(None)
        else:
            self._free += 1


class _Run:
    def __init__(self, setting: Setting) -> None:
        self.outcome = Outcome()
        self._setting = setting
        self._chance = random.Random(setting.seed)
        self._cluster = _Cluster(setting.slots, random.Random(setting.seed + 1))
        terms = WaitingTerms(queue_timeout_s=_PATIENT_S, starve_s=_PATIENT_S)
        self._gateways = [Leases(terms) for _ in range(setting.gateways)]
        self._estimates = [Estimates(False, 0) for _ in range(setting.gateways)]

    async def play(self) -> Outcome:
        setting = self._setting
        board = LoadBoard(asyncio.get_running_loop().time)
        tasks = [asyncio.create_task(self._exchange(each, board)) for each in self._gateways if setting.shares]
        for demand in setting.demands:
            tasks += [asyncio.create_task(self._client(demand)) for _ in range(demand.clients)]
            if demand.per_s:
                tasks.append(asyncio.create_task(self._arrivals(demand)))
        await asyncio.sleep(_WARM_UP_S + setting.duration_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.outcome

    async def _exchange(self, gateway: Leases, board: LoadBoard) -> None:
        reporter: Reporter[Figures, Figures] = Reporter(
            board.take,
            lambda: Figures(pools={_POOL: PoolReport(gateway.queue.report())}),
            lambda others: gateway.merge(others.pools[_POOL].queue),
            "the board", "", log,
        )  # fmt: skip
        await asyncio.sleep(self._chance.random() * PERIOD_S)
        while True:
            await reporter.sync()
            await asyncio.sleep(PERIOD_S)

    async def _client(self, demand: Demand) -> None:
        await asyncio.sleep(self._chance.random())
        while True:
            await self._request(demand)

    async def _arrivals(self, demand: Demand) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._chance.expovariate(demand.per_s))
                group.create_task(self._request(demand))

    async def _request(self, demand: Demand) -> None:
        chance, loop = self._chance, asyncio.get_running_loop()
        number = chance.randrange(self._setting.gateways)
        leases, estimates = self._gateways[number], self._estimates[number]
        prompt = chance.randint(*_PROMPT_TOKENS)
        output = min(_MAX_OUTPUT, round(demand.longer * chance.lognormvariate(4.5, 0.8)) + 1)
        size = RequestSize(prompt * 4, max_output=_MAX_OUTPUT)
        group = (demand.tenant, "key", _MODEL, "plain")
        input_tokens, output_tokens = estimates.of(group, size, _MAX_OUTPUT)
        estimate = input_tokens + _OUTPUT_WEIGHT * output_tokens
        asker = Asker(demand.tenant, demand.weight, cost=estimate) if self._setting.fair else Asker("everybody")
        began_s = loop.time()
        hold = leases.hold(self._cluster.reserve, asker=asker)
        async with hold:
            begun_s = loop.time()
            try:
                await asyncio.sleep(prompt / _PREFILL_TOKENS_PER_S + output / _TOKENS_PER_S)
            finally:
                self.outcome.busy_s += max(0.0, loop.time() - max(begun_s, _WARM_UP_S))
            usage = Usage(prompt, 0, output)
            cost = usage.input + _OUTPUT_WEIGHT * usage.output
            hold.turn.settle(cost)
        estimates.learn(group, size, usage, Meter("p", False))
        if loop.time() > _WARM_UP_S:
            self.outcome.served[demand.tenant].append((loop.time(), cost))
            self.outcome.waits_s[demand.tenant].append(begun_s - began_s)


def play(setting: Setting) -> Outcome:
    """Returns what came of a run."""
    return run_in_virtual_time(_Run(setting).play())
