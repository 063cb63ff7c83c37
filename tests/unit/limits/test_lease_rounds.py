"""A ledger that is slow, silent or busy with others refuses nothing of which there is plenty."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

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

PLENTY = Limits(requests_per_minute=10**8, tokens_per_minute=10**10, concurrency=10**6)


class Remote:
    """A ledger in another process.

    Args:
        on_the_way: What happens before an answer is there.
    """

    def __init__(self, on_the_way: Callable[[], Awaitable[object]]) -> None:
        self.ledger = Ledger(UsageBook(), 0.0)
        self._on_the_way = on_the_way

    async def sync(self, report: Report) -> Reply:
        return self.ledger.sync(report)

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        reply = self.ledger.lease(replica, asks)
        await self._on_the_way()
        return reply

    usage = LocalLedger.usage


def accounts_at(ledger: Remote) -> Accounts:
    return Accounts(RateLimitsConfig(), ledger, replicas=2)


async def ask(accounts: Accounts, limits: Limits = PLENTY) -> float:
    """Reserves for one request; returns the seconds that it took."""
    begun_s = time.monotonic()
    principal = Principal("k", Tenant("t", limits=limits), frozenset({"infer"}))
    await accounts.reserve(principal, "m", "plain", Size(100), [])
    return time.monotonic() - begun_s


async def slow() -> None:
    await asyncio.sleep(0.012)


async def busy() -> None:
    """The event loop is held for longer than anybody has patience; the answer comes right after it."""
    asyncio.get_running_loop().call_soon(time.sleep, 0.03)
    for _ in range(3):
        await asyncio.sleep(0)


async def silent() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("on_the_way", [slow, busy, silent])
async def test_a_ledger_that_takes_its_time_refuses_nobody(on_the_way: Callable[[], Awaitable[object]]) -> None:
    """Who came between two rounds had waited for 20 ms when its own was not over, and was told of a limit reached."""
    accounts = accounts_at(Remote(on_the_way))
    requests = []
    for _ in range(30):
        requests.append(asyncio.create_task(ask(accounts)))
        await asyncio.sleep(0.003)
    await asyncio.gather(*requests)


async def test_a_busy_event_loop_is_no_silence_of_the_ledger() -> None:
    accounts = accounts_at(Remote(busy))
    await ask(accounts)
    assert not accounts.alone


async def test_nobody_waits_for_the_second_round_of_a_silent_ledger() -> None:
    ledger = Remote(silent)
    accounts = accounts_at(ledger)
    first = asyncio.create_task(ask(accounts))
    await asyncio.sleep(0)
    await asyncio.gather(first, *(ask(accounts) for _ in range(20)))
    assert accounts.alone
    assert len(accounts._rounds._late) == 1, "it was asked again"


async def test_a_ledger_that_was_silent_once_is_asked_again_after_its_next_answer() -> None:
    """The call that nobody waits for any more may never end."""
    answers = asyncio.Event()
    ledger = Remote(answers.wait)
    accounts = accounts_at(ledger)
    await ask(accounts)
    assert accounts.alone
    await accounts.sync()
    assert not accounts.alone
    ledger._on_the_way = slow
    await ask(accounts, Limits(requests_per_minute=6))
    assert not accounts.alone
    answers.set()


async def test_what_a_silent_ledger_says_late_counts() -> None:
    answers = asyncio.Event()
    accounts = accounts_at(Remote(answers.wait))
    limits = Limits(requests_per_minute=2)
    await ask(accounts, limits)  # on its own the replica lets one pass
    with pytest.raises(RateLimitError):
        await ask(accounts, limits)
    answers.set()
    await asyncio.sleep(0.01)
    await ask(accounts, limits)


async def test_a_slice_that_knows_of_an_empty_bucket_draws_nothing_from_it() -> None:
    accounts = accounts_at(Remote(slow))
    limits = Limits(requests_per_minute=12)
    ended = await asyncio.gather(*(ask(accounts, limits) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(each, RateLimitError) for each in ended) == 6
    accounts._holdings.lost(accounts._clock())
    with pytest.raises(RateLimitError):
        await ask(accounts, limits)
