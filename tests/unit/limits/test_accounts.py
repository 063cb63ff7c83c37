"""Many requests at once, at a replica that holds nothing yet."""

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN
from support.limits import LedgerLink

from serve.access.key_file import KeyTerms
from serve.access.key_ring import KeyRing
from serve.access.key_store import KeyStore
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.limits.accounts import Accounts
from serve.limits.book import UsageBook
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger

REQUESTS = 100


async def elsewhere() -> None:
    """The ledger is in another process: each call takes a few turns of the event loop."""
    for _ in range(3):
        await asyncio.sleep(0)


async def admitted(limits: Limits, ledger: LedgerLink) -> int:
    """Of `REQUESTS` requests at once."""
    accounts = Accounts(RateLimitsConfig(), ledger, clock=lambda: 0.0)
    principal = Principal("k", Tenant("t", limits=limits), frozenset({"infer"}))
    asked = [accounts.reserve(principal, "m", "plain", RequestSize(100), []) for _ in range(REQUESTS)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in ended if isinstance(each, BaseException)]
    assert all(isinstance(each, RateLimitError) for each in refused), refused
    return REQUESTS - len(refused)


@pytest.mark.parametrize("seats", [30, REQUESTS, 2 * REQUESTS])
async def test_a_burst_gets_every_seat_that_there_is(seats: int) -> None:
    """They were asked for one by one, so that most of a burst waited until it was refused."""
    ledger = LedgerLink(on_the_way=elsewhere)
    assert await admitted(Limits(concurrency=seats), ledger) == min(seats, REQUESTS)
    assert ledger.calls <= 3


@pytest.mark.parametrize("reports", range(2, 7))
@pytest.mark.parametrize("running", [(10,), (16, 16), (24,), (30,), (20, 10), (8, 8, 8), (50,)], ids=str)
async def test_seats_in_advance_leave_half_of_all_to_a_burst_elsewhere(running: tuple[int, ...], reports: int) -> None:
    """Whenever it comes, once each knows of the others: otherwise seats are asked for and given back by turns."""
    now_s, limits = 0.0, Limits(concurrency=64)
    ledger = LedgerLink(Ledger(UsageBook(), 0.0, lambda: now_s))
    replicas = [Accounts(RateLimitsConfig(), ledger, len(running) + 1, lambda: now_s) for _ in (*running, "idle")]
    principal = Principal("k", Tenant("t", limits=limits), frozenset({"infer"}))

    async def ask(accounts: Accounts, requests: int) -> None:
        for _ in range(requests):
            await accounts.reserve(principal, "m", "plain", RequestSize(100), [])

    for accounts, requests in zip(replicas, running, strict=False):
        await ask(accounts, requests)
    for _ in range(reports):
        now_s += 1.0
        for accounts in replicas:
            await accounts.sync()
    await ask(replicas[-1], min(32, 64 - sum(running)))


@pytest.mark.parametrize("limits", [Limits(tokens_per_minute=10**9), Limits(requests_per_minute=10**6)])
async def test_a_burst_asks_for_rates_together(limits: Limits) -> None:
    ledger = LedgerLink(on_the_way=elsewhere)
    assert await admitted(limits, ledger) == REQUESTS
    assert ledger.calls <= 3


async def test_limits_for_what_is_no_model_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    accounts = Accounts(RateLimitsConfig(), LedgerLink(), names={"m": "m", "alias": "m"})
    limits = {name: Limits(concurrency=9) for name in ("m", "alias", "mm")}
    for key in ("k1", "k2"):
        principal = Principal(key, Tenant("t", model_limits=limits), frozenset({"infer"}))
        await accounts.reserve(principal, "m", "plain", RequestSize(100), [])
    assert [record.message for record in caplog.records] == [
        "the tenant t has limits for 'mm', which is no model of this gateway"
    ]


@pytest.mark.parametrize("generations", [1, 2])
async def test_keys_that_a_key_makes_spend_of_its_own_limit(generations: int) -> None:
    """Otherwise a key of five requests a minute had five more for each key that it made."""
    store, ring = KeyStore(None), KeyRing()
    limits = Limits(requests_per_minute=5)
    issued = [store.create(KeyTerms(tenant="t", scopes=("infer", "keys:own"), limits=limits))]
    for _ in range(generations):
        ring.adopt(store.changes_since(0))
        issuer = ring.authenticate({"x-api-key": issued[-1].token})
        for _ in range(3):
            issued.append(store.create(KeyTerms(tenant="t", scopes=("infer", "keys:own"), limits=limits), issuer))
    ring.adopt(store.changes_since(0))
    store.close()
    accounts, passed = Accounts(RateLimitsConfig(burst_s=60), LedgerLink(), clock=lambda: 0.0), 0
    for each in issued:
        for _ in range(5):
            with suppress(RateLimitError):
                await accounts.reserve(ring.authenticate({"x-api-key": each.token}), "m", "plain", RequestSize(100), [])
                passed += 1
    assert passed == 5


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), OverflowError(), OSError()])
async def test_what_a_ledger_can_not_book_is_reported_again_until_it_can(error: Exception) -> None:
    class Book(UsageBook):
        fails = True

        def add(self, *what: Any) -> None:
            if self.fails:
                raise error
            super().add(*what)

    book = Book()
    ledger = LedgerLink(Ledger(book, 0.0))
    accounts, others = (Accounts(RateLimitsConfig(), ledger) for _ in range(2))
    for each in (accounts, others):
        charge = await each.reserve(Principal("k", Tenant("t"), frozenset({"infer"})), "m", "plain", RequestSize(9), [])
        charge.attempt("p", False).answered(200)
        charge.settle(200, INVALID_SPAN)
        await each.sync()
        assert each.alone
    assert book.usage([]) == []
    book.fails = False
    for each in (accounts, others, accounts):
        await each.sync()
    assert book.usage([])[0]["requests"] == 2
