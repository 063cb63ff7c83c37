"""A large request comes through beside a tenant's own small ones, which take whatever is there as soon as they can."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from support.limits import LedgerLink

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.book import UsageBook
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger

RATE_PER_S = 1000.0
CONFIG = RateLimitsConfig(estimate="strict", output_cap=1_000_000)
BURST = RATE_PER_S * CONFIG.burst_s
PRINCIPAL = Principal("k", Tenant("team", limits=Limits(tokens_per_minute=int(RATE_PER_S * 60))), frozenset({"infer"}))
SMALL = RequestSize(300, max_output=100)
TICK_S = 0.1


def large(cost: float) -> RequestSize:
    return RequestSize(300, max_output=int(cost / 2))


@dataclass
class Site:
    """Gateway replicas whose small requests take all that there is, ten times a second."""

    replicas: int
    now_s: float = 1000.0
    small: float = 0.0
    accounts: list[Accounts] = field(default_factory=list)

    def __post_init__(self) -> None:
        month = datetime(2026, 11, 22, tzinfo=UTC)
        link = LedgerLink(Ledger(UsageBook(), 0.0, lambda: self.now_s, lambda: month))
        self.accounts = [
            Accounts(CONFIG, link, self.replicas, lambda: self.now_s, lambda: month) for _ in range(self.replicas)
        ]

    async def ask(self, size: RequestSize, replica: int = 0) -> RateLimitError | float:
        """Returns what was reserved for a request, or why it was refused."""
        try:
            charge = await self.accounts[replica].reserve(PRINCIPAL, "m", "plain", size, [])
        except RateLimitError as error:
            return error
        charge.reservation.settle(charge.reservation.cost)  # it uses all of it
        return charge.reservation.cost

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            for replica, accounts in enumerate(self.accounts):
                if self.now_s % 1 < TICK_S:
                    await accounts.sync()
                while isinstance(reserved := await self.ask(SMALL, replica), float):
                    self.small += reserved


async def reply(site: Site, size: RequestSize, most: int) -> list[float]:
    """What a client is told to wait, each time that it asks, until its request is let through."""
    waits: list[float] = []
    while isinstance(refused := await site.ask(size, len(waits) % site.replicas), RateLimitError):
        assert len(waits) < most, waits
        waits.append(refused.retry_after_s)
        await site.run(waits[-1])
    return waits


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("cost", [700, 5_000, 0.9 * BURST, 2 * BURST])
async def test_a_large_request_passes_at_the_third_attempt_at_the_latest(cost: float, replicas: int) -> None:
    site = Site(replicas)
    await site.run(60)
    begun_s, taken = site.now_s, site.small
    waits = await reply(site, large(cost), 3)
    assert len(waits) <= 2
    elapsed_s = site.now_s - begun_s
    assert elapsed_s <= 2 * min(cost, BURST) / RATE_PER_S + 4
    assert site.small - taken >= 0.4 * elapsed_s * RATE_PER_S - cost, "the small ones keep half of what flows in"


async def test_alone_it_passes_when_it_was_told() -> None:
    site = Site(1)
    await site.run(60)
    refused = await site.ask(large(20_000))
    assert isinstance(refused, RateLimitError)
    site.now_s += refused.retry_after_s
    assert isinstance(await site.ask(large(20_000)), float)


async def test_small_requests_are_told_the_truth_while_something_is_set_aside() -> None:
    site = Site(1)
    await site.run(60)
    assert isinstance(await site.ask(large(20_000)), RateLimitError)
    await site.run(5)
    refused = await site.ask(SMALL)
    assert isinstance(refused, RateLimitError)
    site.now_s += refused.retry_after_s
    assert isinstance(await site.ask(SMALL), float)


async def test_what_is_set_aside_for_a_client_that_does_not_come_again_is_lost_to_nobody() -> None:
    site = Site(1)
    await site.run(60)
    begun_s, taken = site.now_s, site.small
    assert isinstance(await site.ask(large(20_000)), RateLimitError)
    await site.run(60)
    assert site.small - taken >= 0.98 * RATE_PER_S * (site.now_s - begun_s)


async def test_a_request_above_the_burst_is_told_why_it_waits_so_long() -> None:
    site = Site(1)
    await site.run(60)
    refused = await site.ask(large(2 * BURST))
    assert isinstance(refused, RateLimitError)
    assert "needs the whole burst" in refused.message
    refused = await site.ask(large(BURST / 2))
    assert isinstance(refused, RateLimitError)
    assert "burst" not in refused.message


async def test_of_requests_which_are_all_of_one_size_nobody_is_told_to_wait_for_longer() -> None:
    tenant = Tenant("counted", limits=Limits(requests_per_minute=4))
    counted = Principal("k", tenant, frozenset({"infer"}))
    site = Site(1)
    for _ in range(2):
        await site.accounts[0].reserve(counted, "m", "plain", SMALL, [])
    for _ in range(3):
        with pytest.raises(RateLimitError) as refused:
            await site.accounts[0].reserve(counted, "m", "plain", SMALL, [])
        assert refused.value.retry_after_s == 15
