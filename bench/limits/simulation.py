"""Clients, gateway replicas and their ledger in virtual time; everything but clients and engines is the real code."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from opentelemetry.trace import INVALID_SPAN

from lab.simulation.virtual_time import run_in_virtual_time
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, TokenWeights
from serve.errors import RateLimitError, SharedStateError
from serve.limits.accounts import PERIOD_S, Accounts
from serve.limits.book import UsageBook
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger
from serve.limits.usage import Usage
from serve.shared.link import LocalLink
from serve.shared.report import SETTLE_S

TOKENS_PER_MINUTE = 60_000
BURST_S = 30.0
_EPOCH = datetime(2026, 11, 1, tzinfo=UTC)
_TOKENS_PER_S = 60.0  # of one answer
_FIRST_TOKEN_S = 0.3
_MAX_OUTPUT = 512
_TOKENS_PER_BYTE = (0.24, 0.3)


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        replicas: Gateway replicas.
        moves_s: When all clients move to the first replica.
        clients: All together; each asks again at once, and after a refusal when it was told to.
        dead: When the ledger dies and when another one begins, in seconds from the start.
    """

    estimate: Literal["strict", "expected"] = "strict"
    replicas: int = 1
    moves_s: float = math.inf
    clients: int = 200
    duration_s: float = 600.0
    dead: tuple[float, float] | None = None
    seed: int = 1


@dataclass
class Outcome:
    """What came of a run; costs in weighted tokens.

    Attributes:
        settled: (time, cost) of every request that ended.
        used: (time, cost) of every request that was admitted, at the time when it was.
        most_over: The most by which what was reserved was ever above rate x time + capacity; 0 if it never was.
        refused: Requests that a limit refused.
    """

    settled: list[tuple[float, float]] = field(default_factory=list)
    used: list[tuple[float, float]] = field(default_factory=list)
    most_over: float = 0.0
    refused: int = 0


class _Link:
    """The way to a ledger that can be away."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._book = UsageBook()
        self.ledger: Ledger | None = None
        self.begin(0.0)

    def begin(self, settle_s: float) -> None:
        self.ledger = Ledger(self._book, settle_s, self._clock, lambda: _EPOCH + timedelta(seconds=self._clock()))

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.ledger is None:
            raise SharedStateError("The ledger is away.")
        return await LocalLink(self.ledger).call(method, *arguments)


class _Run:
    def __init__(self, setting: Setting) -> None:
        self.outcome = Outcome()
        self._setting = setting
        self._random = random.Random(setting.seed)
        self._reserved = 0.0
        clock = asyncio.get_running_loop().time
        self._ledger = _Link(clock)
        config = RateLimitsConfig(enabled=True, estimate=setting.estimate, burst_s=BURST_S)
        calendar = lambda: _EPOCH + timedelta(seconds=clock())  # noqa: E731
        self._accounts = [
            Accounts(config, self._ledger, setting.replicas, clock, calendar) for _ in range(setting.replicas)
        ]
        self._clock = clock
        tenant = Tenant("tenant", limits=Limits(tokens_per_minute=TOKENS_PER_MINUTE))
        self._principal = Principal("key", tenant, frozenset({"infer"}))

    async def play(self) -> Outcome:
        setting = self._setting
        with suppress(TimeoutError):
            async with asyncio.timeout_at(setting.duration_s), asyncio.TaskGroup() as group:
                if setting.dead is not None:
                    group.create_task(self._die(*setting.dead))
                for number, accounts in enumerate(self._accounts):
                    group.create_task(self._report(accounts, number * PERIOD_S / setting.replicas))
                for number in range(setting.clients):
                    group.create_task(self._client(number % setting.replicas, 0.01 + self._random.random()))
        return self.outcome

    async def _report(self, accounts: Accounts, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            await accounts.sync()
            await asyncio.sleep(PERIOD_S)

    async def _client(self, replica: int, after_s: float) -> None:
        while True:
            await asyncio.sleep(after_s)
            after_s = await self._ask(self._accounts[replica])
            if self._clock() >= self._setting.moves_s:
                replica = 0

    async def _ask(self, accounts: Accounts) -> float:
        """Returns in how many seconds the client asks again."""
        size = RequestSize(self._random.randrange(400, 8000), max_output=_MAX_OUTPUT)
        usage = Usage(
            int(size.text_bytes * self._random.uniform(*_TOKENS_PER_BYTE)),
            0,
            min(_MAX_OUTPUT, int(self._random.lognormvariate(4.5, 0.8))),
        )
        try:
            charge = await accounts.reserve(self._principal, "model", "plain", size, [])
        except RateLimitError as error:
            self.outcome.refused += 1
            return error.retry_after_s * self._random.uniform(1, 1.2)
        cost, actual = charge.reservation.cost, _cost(usage)
        self.outcome.used.append((self._clock(), actual))
        self._spend(cost)
        await asyncio.sleep(_FIRST_TOKEN_S + usage.output / _TOKENS_PER_S)
        meter = charge.attempt("pool", False)
        meter.status = 200
        meter.whole(b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (usage.input, usage.output))
        charge.settle(200, INVALID_SPAN)
        self._spend(min(actual - cost, 0.0))
        self.outcome.settled.append((self._clock(), actual))
        return 0.0

    def _spend(self, cost: float) -> None:
        self._reserved += cost
        flowed = TOKENS_PER_MINUTE / 60 * (self._clock() + BURST_S)
        self.outcome.most_over = max(self.outcome.most_over, self._reserved - flowed)

    async def _die(self, dies_s: float, back_s: float) -> None:
        await asyncio.sleep(dies_s)
        self._ledger.ledger = None
        await asyncio.sleep(back_s - dies_s)
        self._ledger.begin(SETTLE_S)


def _cost(usage: Usage) -> float:
    return usage.cost(TokenWeights())


def play(setting: Setting) -> Outcome:
    """Returns what came of a run."""

    async def main() -> Outcome:
        return await _Run(setting).play()

    return run_in_virtual_time(main())
