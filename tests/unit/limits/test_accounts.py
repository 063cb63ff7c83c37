"""Many requests at once, at a replica that holds nothing yet."""

import asyncio
from collections.abc import Mapping

import pytest

from serve.access.principal import Principal
from serve.access.tenants import Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.actor import LocalLedger
from serve.limits.book import UsageBook
from serve.limits.estimate import Size
from serve.limits.ledger import Ledger
from serve.limits.messages import Ask, Meter, Reply, Report

REQUESTS = 100


class Elsewhere:
    """A ledger in another process: each call takes a few turns of the event loop."""

    def __init__(self) -> None:
        self.calls = 0
        self._ledger = Ledger(UsageBook(), 0.0)

    async def sync(self, report: Report) -> Reply:
        return self._ledger.sync(report)

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        self.calls += 1
        for _ in range(3):
            await asyncio.sleep(0)
        return self._ledger.lease(replica, asks)

    usage = LocalLedger.usage


async def admitted(limits: Limits, ledger: Elsewhere) -> int:
    """Of `REQUESTS` requests at once."""
    accounts = Accounts(RateLimitsConfig(), ledger, clock=lambda: 0.0)
    principal = Principal("k", Tenant("t", limits=limits), frozenset({"infer"}))
    asked = [accounts.reserve(principal, "m", "plain", Size(100), []) for _ in range(REQUESTS)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in ended if isinstance(each, BaseException)]
    assert all(isinstance(each, RateLimitError) for each in refused), refused
    return REQUESTS - len(refused)


@pytest.mark.parametrize("seats", [30, REQUESTS, 2 * REQUESTS])
async def test_a_burst_gets_every_seat_that_there_is(seats: int) -> None:
    """They were asked for one by one, so that most of a burst waited until it was refused."""
    ledger = Elsewhere()
    assert await admitted(Limits(concurrency=seats), ledger) == min(seats, REQUESTS)
    assert ledger.calls <= 3


@pytest.mark.parametrize("limits", [Limits(tokens_per_minute=10**9), Limits(requests_per_minute=10**6)])
async def test_a_burst_asks_for_rates_together(limits: Limits) -> None:
    ledger = Elsewhere()
    assert await admitted(limits, ledger) == REQUESTS
    assert ledger.calls <= 3


async def test_limits_for_what_is_no_model_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    accounts = Accounts(RateLimitsConfig(), Elsewhere(), names={"m": "m", "alias": "m"})
    limits = {name: Limits(concurrency=9) for name in ("m", "alias", "mm")}
    for key in ("k1", "k2"):
        principal = Principal(key, Tenant("t", model_limits=limits), frozenset({"infer"}))
        await accounts.reserve(principal, "m", "plain", Size(100), [])
    assert [record.message for record in caplog.records] == [
        "the tenant t has limits for 'mm', which is no model of this gateway"
    ]
