"""Two clusters that share one tenant's limits through a real server, which is killed, frozen or emptied."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.trace import INVALID_SPAN
from support.limits_store import StoreServer, needs_server

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, StoreConfig
from serve.errors import QuotaError, RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.actor import LedgerActor
from serve.limits.charge import Charge
from serve.limits.estimate import RequestSize
from serve.shared.link import LocalLink

pytestmark = needs_server
HELD_S = 0.5  # a request that waits for a store that does not answer waits for seconds
SETTLED_S = 20.0
SIZE = RequestSize(400, max_output=16)
PLENTY = Limits(requests_per_minute=10**7, tokens_per_minute=10**9, concurrency=10**5)


class Cluster:
    """One gateway replica and its ledger.

    Args:
        config: Of the store.
        limits: Of the tenant.
    """

    def __init__(self, config: StoreConfig, limits: Limits, burst_s: float = 30.0) -> None:
        self.ledger = LedgerActor(None, 0.0, config)
        self.accounts = Accounts(RateLimitsConfig(enabled=True, burst_s=burst_s), LocalLink(self.ledger))
        self.principal = Principal("key", Tenant("tenant", limits=limits), frozenset({"infer"}))
        self._reporting = asyncio.create_task(self.accounts.run())

    async def ask(self) -> Charge | None:
        """Returns what a request that is admitted is charged to."""
        try:
            return await self.accounts.reserve(self.principal, "m", "plain", SIZE, [])
        except RateLimitError:
            return None

    async def run(self, seconds: float, pause_s: float = 0.002) -> tuple[int, int, float]:
        """Asks one after the other; returns how many were admitted and refused, and the longest time that one took."""
        admitted = refused = 0
        longest_s = 0.0
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            begun_s = time.monotonic()
            charge = await self.ask()
            longest_s = max(longest_s, time.monotonic() - begun_s)
            admitted += charge is not None
            refused += charge is None
            if charge is not None:
                settle(charge)
            await asyncio.sleep(pause_s)
        return admitted, refused, longest_s

    async def until_shared(self) -> None:
        """Waits until the store gives something."""
        ends_s = time.monotonic() + SETTLED_S
        while True:
            charge = await self.ask()
            if charge is not None:
                settle(charge)
                if not self.accounts.alone:
                    return
            assert time.monotonic() < ends_s
            await asyncio.sleep(0.1)

    async def until_refused(self) -> None:
        """Asks until the month is known to be spent."""
        ends_s = time.monotonic() + SETTLED_S
        while time.monotonic() < ends_s:
            try:
                charge = await self.ask()
            except QuotaError:
                return
            if charge is not None:
                settle(charge)
            await asyncio.sleep(0.05)
        pytest.fail("the month is never spent")

    async def close(self) -> None:
        self._reporting.cancel()
        await asyncio.gather(self._reporting, return_exceptions=True)
        await self.ledger.close()


def settle(charge: Charge) -> None:
    meter = charge.attempt("p", False)
    meter.status = 200
    meter.whole(b'{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":16}}')
    charge.settle(200, INVALID_SPAN)


@asynccontextmanager
async def clusters(
    config: StoreConfig, limits: Limits, number: int = 2, burst_s: float = 30.0
) -> AsyncIterator[list[Cluster]]:
    found = [Cluster(config, limits, burst_s) for _ in range(number)]
    try:
        for each in found:
            await each.until_shared()
        yield found
    finally:
        for each in found:
            await each.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StoreServer]:
    found = StoreServer(tmp_path)
    await found.start()
    yield found
    found.stop()


async def test_two_clusters_together_admit_what_one_tenant_may_have(server: StoreServer) -> None:
    rate, burst_s = 20.0, 5.0
    begun_s = time.monotonic()
    async with clusters(server.config, Limits(requests_per_minute=int(rate * 60)), burst_s=burst_s) as both:
        counts = await asyncio.gather(*(each.run(8.0) for each in both))
        seconds = time.monotonic() - begun_s
    admitted = sum(count for count, _, _ in counts)
    assert admitted <= rate * (seconds + burst_s)
    assert admitted >= 0.5 * rate * 8.0, "nor much less"
    assert all(refused for _, refused, _ in counts)


async def test_a_cluster_alone_gets_what_the_others_leave(server: StoreServer) -> None:
    rate = 20.0
    async with clusters(server.config, Limits(requests_per_minute=int(rate * 60)), burst_s=5.0) as (busy, _):
        await busy.run(6.0)
        admitted, _, _ = await busy.run(5.0)
    assert admitted >= 0.8 * rate * 5.0


async def test_requests_at_the_same_time_are_counted_over_clusters(server: StoreServer) -> None:
    async with clusters(server.config, Limits(concurrency=6, requests_per_minute=10**6)) as (one, other):
        running = [charge for _ in range(10) if (charge := await one.ask())]
        assert await other.ask() is None or len(running) < 6
        assert len(running) <= 6
        for charge in running:
            settle(charge)
        ends_s = time.monotonic() + SETTLED_S
        while len(mine := [charge for _ in range(6) if (charge := await other.ask())]) < 5:
            for charge in mine:
                settle(charge)
            assert time.monotonic() < ends_s, "seats that one cluster has left never reach the other"
            await asyncio.sleep(0.2)


async def test_a_month_is_spent_by_all_clusters_together(server: StoreServer) -> None:
    month = 20_000
    async with clusters(server.config, Limits(tokens_per_month=month, requests_per_minute=10**6)) as both:
        await asyncio.gather(*(each.until_refused() for each in both))
        await asyncio.gather(*(each.accounts.sync() for each in both))
        own = [each.ledger.usage(["tenant"])[0] for each in both]
    spent = [row["input"] + 2 * row["output"] for row in own]
    assert max(spent) < month <= sum(spent)


async def test_the_store_is_asked_now_and_then_and_not_by_the_request(server: StoreServer) -> None:
    requests = 2000
    async with clusters(server.config, PLENTY, number=1) as (only,):
        await only.until_shared()
        await server.command("CONFIG", "RESETSTAT")
        for _ in range(requests):
            charge = await only.ask()
            assert charge is not None
            settle(charge)
            await asyncio.sleep(0.002)
        calls = (await server.command("INFO", "commandstats"))["cmdstat_evalsha"]["calls"]
    assert requests > 20 * calls  # by the second, and at once after a standstill, in which a slice is given back


async def test_nobody_fails_or_waits_while_the_store_is_killed_and_comes_back(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with clusters(server.config, PLENTY) as both:
        load = [asyncio.create_task(each.run(12.0)) for each in both]
        await asyncio.sleep(2)
        server.stop()
        await asyncio.sleep(4)
        assert all(each.accounts.ledger_age_s > 2 for each in both)
        await server.start()
        counts = await asyncio.gather(*load)
        for each in both:
            await each.until_shared()
        assert all(each.accounts.ledger_age_s < 4 for each in both)
    # A busy test machine may be late by more than the 20 ms that a request waits.
    assert all(refused <= 0.01 * admitted for admitted, refused, _ in counts)
    assert max(longest for _, _, longest in counts) < HELD_S
    reply = [record.getMessage() for record in caplog.records]
    assert sum("can't be used" in each for each in reply) == 2, "one line a cluster and outage"
    assert sum("the store of limits is back" in each for each in reply) == 2


async def test_nobody_waits_for_a_store_that_hangs(server: StoreServer) -> None:
    async with clusters(server.config, PLENTY) as (one, other):
        load = [asyncio.create_task(each.run(6.0)) for each in (one, other)]
        await asyncio.sleep(1)
        server.signal(signal.SIGSTOP)
        counts = await asyncio.gather(*load)
        server.signal(signal.SIGCONT)
    # A busy test machine may be late by more than the 20 ms that a request waits.
    assert all(refused <= 0.01 * admitted for admitted, refused, _ in counts)
    assert max(longest for _, _, longest in counts) < HELD_S


async def test_without_the_store_each_cluster_admits_its_share(server: StoreServer) -> None:
    rate = 40.0
    async with clusters(server.config, Limits(requests_per_minute=int(rate * 60)), burst_s=2.0) as both:
        await asyncio.gather(*(each.run(5.0) for each in both))
        server.stop()
        await asyncio.gather(*(each.run(4.0) for each in both))  # what was held is spent
        begun_s = time.monotonic()
        counts = await asyncio.gather(*(each.run(5.0) for each in both))
        seconds = time.monotonic() - begun_s
    admitted = sum(count for count, _, _ in counts)
    assert 0.5 * rate * 5.0 <= admitted <= rate * seconds * 1.05 + 2


async def test_a_store_that_is_emptied_under_load_fills_no_bucket(server: StoreServer) -> None:
    rate, burst_s = 20.0, 30.0
    begun_s = time.monotonic()
    async with clusters(server.config, Limits(requests_per_minute=int(rate * 60)), burst_s=burst_s) as both:
        load = [asyncio.create_task(each.run(12.0)) for each in both]
        for _ in range(2):
            await asyncio.sleep(4)
            await server.command("FLUSHALL")
        counts = await asyncio.gather(*load)
        seconds = time.monotonic() - begun_s
    # Two flushes would have given two more bursts of 600.
    assert sum(count for count, _, _ in counts) <= rate * (seconds + burst_s) + 2
