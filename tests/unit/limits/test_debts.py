"""What requests use beyond their reservation is owed: over a long time, no trick gets a tenant more than its limit."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from support.limits import LedgerLink

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.book import UsageBook
from serve.limits.charge import Charge
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger

PER_MINUTE = 60_000
CONFIG = RateLimitsConfig()
BURST = PER_MINUTE / 60 * CONFIG.burst_s
TENANT = Tenant("greedy", limits=Limits(tokens_per_minute=PER_MINUTE))


@dataclass
class Site:
    """Gateway replicas, their ledger and a clock."""

    replicas: int
    now_s: float = 1000.0
    used: float = 0.0
    accounts: list[Accounts] = field(default_factory=list)

    def __post_init__(self) -> None:
        month = datetime(2026, 11, 22, tzinfo=UTC)
        self.ledger = Ledger(UsageBook(), 0.0, lambda: self.now_s, lambda: month)
        link = LedgerLink(self.ledger)
        self.accounts = [
            Accounts(CONFIG, link, self.replicas, lambda: self.now_s, lambda: month) for _ in range(self.replicas)
        ]

    async def second(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            for accounts in self.accounts:
                await accounts.sync()

    async def begin(self, replica: int = 0, key: str = "k") -> Charge | None:
        """A request for a long answer, if it is admitted."""
        size = RequestSize(100, max_output=8192, streamed=True)
        principal = Principal(key, TENANT, frozenset({"infer"}))
        try:
            return await self.accounts[replica].reserve(principal, "m", "plain", size, [])
        except RateLimitError:
            return None

    def end(self, charge: Charge | None, output: int) -> None:
        """Its answer ends, of some length."""
        if charge is not None:
            cost = float(30 + 2 * output)
            self.used += cost
            charge.reservation.settle(cost)


async def test_many_long_answers_at_once_are_paid_for_by_the_wait_after_them() -> None:
    site = Site(1)
    await site.second()
    running = [await site.begin(key=f"key-{number}") for number in range(20)]  # a new key's estimate is a guess
    for charge in running:
        site.end(charge, 8192)
    most = site.used
    assert most > 4 * BURST, "the test has made no debt"
    admitted = 0
    for _ in range(600):
        await site.second()
        charge = await site.begin()
        admitted += charge is not None
        site.end(charge, 8192)
    # What the run-up took is in the first summand; each later answer may exceed its reservation by what it writes.
    assert site.used <= most - BURST + PER_MINUTE * 10 + BURST + 2 * 8192
    assert admitted, "a debt is paid in the end"


async def test_a_debt_made_at_one_replica_holds_at_all_of_them() -> None:
    site = Site(2)
    await site.second()
    for charge in [await site.begin(0, f"key-{number}") for number in range(10)]:
        site.end(charge, 8192)
    await site.second()
    assert await site.begin(1) is None


async def test_a_debt_outlives_the_replica_that_made_it() -> None:
    site = Site(2)
    await site.second()
    for charge in [await site.begin(0, f"key-{number}") for number in range(10)]:
        site.end(charge, 8192)
    await site.second()
    del site.accounts[0]
    await site.second(20)
    assert await site.begin(0) is None


async def test_waiting_without_a_request_forgives_no_debt() -> None:
    """Replicas forget limits that nobody meets after two minutes, and the ledger after ten."""
    site = Site(1)
    await site.second()
    for charge in [await site.begin(key=f"key-{number}") for number in range(60)]:
        site.end(charge, 200_000)
    owed_s = (site.used - BURST) / (PER_MINUTE / 60)
    assert owed_s > 900
    await site.second(800)
    assert await site.begin() is None


async def test_the_time_to_wait_is_that_of_the_debt() -> None:
    site = Site(1)
    await site.second()
    site.end(await site.begin(), 100_000)
    await site.second()
    size = RequestSize(100, max_output=10)
    with pytest.raises(RateLimitError) as refused:
        await site.accounts[0].reserve(Principal("k", TENANT, frozenset()), "m", "plain", size, [])
    assert 165 < refused.value.retry_after_s < 175


async def test_an_answer_that_takes_minutes_is_owed_like_any_other() -> None:
    """A slice that nobody had used for two minutes was forgotten, and with it what its open request was to owe."""
    site = Site(1)
    await site.second()
    charge = await site.begin()
    await site.second(300)
    site.end(charge, 100_000)
    await site.second(2)
    assert await site.begin() is None
    await site.second(300)
    assert await site.begin() is not None
