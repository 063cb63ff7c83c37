"""Clients, gateway replicas and their ledger in virtual time; everything but clients and engines is the real code."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal

from opentelemetry.trace import INVALID_SPAN

from serve.access.principal import Principal
from serve.access.tenants import Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, TokenWeights
from serve.errors import RateLimitError, SharedStateError
from serve.limits.accounts import PERIOD_S, Accounts
from serve.limits.book import UsageBook
from serve.limits.charge import Charge
from serve.limits.estimate import Size
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
        self.now_s = 0.0
        self.outcome = Outcome()
        self._setting = setting
        self._random = random.Random(setting.seed)
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._numbers = count()
        self._reserved = 0.0
        self._ledger = _Link(lambda: self.now_s)
        config = RateLimitsConfig(enabled=True, estimate=setting.estimate, burst_s=BURST_S)
        calendar = lambda: _EPOCH + timedelta(seconds=self.now_s)  # noqa: E731
        self._accounts = [
            Accounts(config, self._ledger, setting.replicas, lambda: self.now_s, calendar)
            for _ in range(setting.replicas)
        ]
        tenant = Tenant("tenant", limits=Limits(tokens_per_minute=TOKENS_PER_MINUTE))
        self._principal = Principal("key", tenant, frozenset({"infer"}))

    async def play(self) -> Outcome:
        for number, accounts in enumerate(self._accounts):
            self._at(number * PERIOD_S / self._setting.replicas, self._report(accounts))
        for number in range(self._setting.clients):
            self._at(0.01 + self._random.random(), self._ask(self._accounts[number % self._setting.replicas]))
        if self._setting.dead is not None:
            dies_s, back_s = self._setting.dead
            self._at(dies_s, self._die)
            self._at(back_s, self._come_back)
        while self._events and self._events[0][0] <= self._setting.duration_s:
            self.now_s, _, act = heapq.heappop(self._events)
            await act()
        return self.outcome

    def _at(self, at_s: float, act: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), act))

    def _report(self, accounts: Accounts) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            await accounts.sync()
            self._at(self.now_s + PERIOD_S, self._report(accounts))

        return act

    def _ask(self, accounts: Accounts) -> Callable[[], Awaitable[None]]:
        if self.now_s >= self._setting.moves_s:
            accounts = self._accounts[0]

        async def act() -> None:
            size = Size(self._random.randrange(400, 8000), max_output=_MAX_OUTPUT)
            usage = Usage(
                int(size.text_bytes * self._random.uniform(*_TOKENS_PER_BYTE)),
                0,
                min(_MAX_OUTPUT, int(self._random.lognormvariate(4.5, 0.8))),
            )
            try:
                charge = await accounts.reserve(self._principal, "model", "plain", size, [])
            except RateLimitError as error:
                self.outcome.refused += 1
                self._at(self.now_s + error.retry_after_s * self._random.uniform(1, 1.2), self._ask(accounts))
                return
            cost = charge.reservation.cost
            self.outcome.used.append((self.now_s, _cost(usage)))
            self._spend(cost)
            self._at(
                self.now_s + _FIRST_TOKEN_S + usage.output / _TOKENS_PER_S, self._end(accounts, charge, cost, usage)
            )

        return act

    def _end(self, accounts: Accounts, charge: Charge, cost: float, usage: Usage) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            meter = charge.attempt("pool", False, False)
            meter.status = 200
            meter.whole(
                b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (usage.input, usage.output)
            )
            charge.settle(200, INVALID_SPAN)
            actual = _cost(usage)
            self._spend(min(actual - cost, 0.0))
            self.outcome.settled.append((self.now_s, actual))
            self._at(self.now_s, self._ask(accounts))

        return act

    def _spend(self, cost: float) -> None:
        self._reserved += cost
        flowed = TOKENS_PER_MINUTE / 60 * (self.now_s + BURST_S)
        self.outcome.most_over = max(self.outcome.most_over, self._reserved - flowed)

    async def _die(self) -> None:
        self._ledger.ledger = None

    async def _come_back(self) -> None:
        self._ledger.begin(SETTLE_S)


def _cost(usage: Usage) -> float:
    return usage.cost(TokenWeights())


async def play(setting: Setting) -> Outcome:
    """Returns what came of a run."""
    return await _Run(setting).play()
