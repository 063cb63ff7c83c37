"""A ledger that is slow, silent or busy with others refuses nothing of which there is plenty."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.limits import LedgerLink

from lab.simulation.virtual_time import run_in_virtual_time
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.estimate import RequestSize

COST = 1057  # of a request of `ask`
PLENTY = Limits(requests_per_minute=10**8, tokens_per_minute=10**10, concurrency=10**6)


def accounts_at(ledger: LedgerLink) -> Accounts:
    return Accounts(RateLimitsConfig(), ledger, replicas=2)


async def ask(accounts: Accounts, limits: Limits = PLENTY, tenant: str = "t") -> float:
    """Reserves for one request; returns the seconds that it took."""
    begun_s = time.monotonic()
    principal = Principal("k", Tenant(tenant, limits=limits), frozenset({"infer"}))
    await accounts.reserve(principal, "m", "plain", RequestSize(100), [])
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
    accounts = accounts_at(LedgerLink(on_the_way=on_the_way))
    requests = []
    for _ in range(30):
        requests.append(asyncio.create_task(ask(accounts)))
        await asyncio.sleep(0.003)
    await asyncio.gather(*requests)


@settings(max_examples=200, deadline=None)
@given(
    delays_s=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=20),
    arrivals_s=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=40),
)
def test_a_ledger_refuses_nobody_however_late_its_answers_are(delays_s: list[float], arrivals_s: list[float]) -> None:
    """Whoever waited for a late answer that others took was told of a limit reached, although the ledger was back."""

    async def play() -> None:
        clock, delays = asyncio.get_running_loop().time, itertools.cycle(delays_s)
        accounts = Accounts(RateLimitsConfig(), LedgerLink(on_the_way=lambda: asyncio.sleep(next(delays))), 2, clock)

        async def arrive(at_s: float) -> None:
            await asyncio.sleep(at_s)
            await ask(accounts)

        async with asyncio.TaskGroup() as group:
            reports = group.create_task(accounts.run())
            await asyncio.gather(*map(arrive, arrivals_s))
            reports.cancel()
            assert clock() - max(arrivals_s) < 1.1

    run_in_virtual_time(play())


@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("running", [1, 2, 3, 4, 6, 9])
async def test_a_dead_ledger_refuses_none_of_as_many_again_as_ran_before(running: int, together: bool) -> None:
    """A replica had what it had asked for at its last need: anything between no free seat and as many again."""
    ledger = LedgerLink()
    accounts = accounts_at(ledger)
    for batch in [running] if together else [1] * running:
        await asyncio.gather(*(ask(accounts) for _ in range(batch)))
    await accounts.sync()
    ledger.is_dead = True
    await accounts.sync()
    assert accounts.alone
    for _ in range(running):
        await ask(accounts)


async def test_a_busy_event_loop_is_no_silence_of_the_ledger() -> None:
    accounts = accounts_at(LedgerLink(on_the_way=busy))
    await ask(accounts)
    assert not accounts.alone


async def test_nobody_waits_for_the_second_round_of_a_silent_ledger() -> None:
    ledger = LedgerLink(on_the_way=silent)
    accounts = accounts_at(ledger)
    first = asyncio.create_task(ask(accounts))
    await asyncio.sleep(0)
    await asyncio.gather(first, *(ask(accounts) for _ in range(20)))
    assert accounts.alone
    assert ledger.calls == 1, "it was asked again"


async def test_a_ledger_that_was_silent_once_is_asked_again_after_its_next_answer() -> None:
    answers = asyncio.Event()
    ledger = LedgerLink(on_the_way=answers.wait)
    accounts = accounts_at(ledger)
    await ask(accounts)
    assert accounts.alone
    answers.set()
    await asyncio.sleep(0.01)
    assert not accounts.alone
    await ask(accounts, Limits(requests_per_minute=6), "other")
    assert ledger.calls == 2
    assert not accounts.alone


async def test_what_a_silent_ledger_says_late_counts() -> None:
    answers = asyncio.Event()
    ledger = LedgerLink(on_the_way=answers.wait)
    accounts = accounts_at(ledger)
    limits = Limits(tokens_per_minute=9 * COST)  # a quarter of the burst is a little more than one request
    await ask(accounts, limits)
    with pytest.raises(RateLimitError):
        await ask(accounts, limits)
    answers.set()
    await asyncio.sleep(0.01)
    await ask(accounts, limits)
    assert ledger.calls == 1


async def test_a_newcomer_whose_share_others_have_waits_for_a_late_answer_before_it_refuses() -> None:
    on_time = asyncio.Event()
    on_time.set()
    ledger = LedgerLink(on_the_way=on_time.wait)
    before, newcomer = accounts_at(ledger), accounts_at(ledger)
    for _ in range(3):
        await ask(before)
        await before.sync()
    await ask(newcomer)
    on_time.clear()
    asyncio.get_running_loop().call_later(0.1, on_time.set)
    await asyncio.gather(*(ask(newcomer) for _ in range(200)))


async def test_who_knows_of_an_empty_bucket_draws_nothing_from_it() -> None:
    ledger = LedgerLink(on_the_way=slow)
    accounts = accounts_at(ledger)
    limits = Limits(requests_per_minute=12)
    ended = await asyncio.gather(*(ask(accounts, limits) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(each, RateLimitError) for each in ended) == 6
    ledger.is_dead = True
    await accounts.sync()
    assert accounts.alone
    with pytest.raises(RateLimitError):
        await ask(accounts, limits)
