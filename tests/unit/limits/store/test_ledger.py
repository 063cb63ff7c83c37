"""The ledger of a cluster that shares its limits: what it gives out while its store is near, far, away or broken."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from serve.config.rate_limits import StoreConfig
from serve.errors import SharedStateError
from serve.limits.messages import Ask, Grant, Holding, Meter, Report, Spending, Terms
from serve.limits.store.ledger import SharedLedger
from serve.limits.store.messages import Advance, Answer, Message

NOWHERE = StoreConfig(url="redis://127.0.0.1:1")
TOKENS = Meter("tenant:a", "tokens")
TERMS = Terms(100.0, 3000.0)
SOON_S = 5.0


class FakeStore:
    """A store that gives all that is asked for, whenever `answers` lets it.

    Attributes:
        messages: That it was sent.
        answers: Waited for before each answer.
        elsewhere: What other clusters have spent.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.answers: Callable[[], Awaitable[None]] = self.at_once
        self.elsewhere = 0.0

    async def at_once(self) -> None: ...

    async def far_away(self) -> None:
        await asyncio.sleep(60.0)

    async def refuse(self) -> None:
        raise SharedStateError("The store is away.")

    async def exchange(self, message: Message) -> Answer:
        self.messages.append(message)
        await self.answers()
        given = {
            meter: Advance(entry.needed + entry.wanted, 1000.0, 50.0, 0.0, False)
            for meter, entry in message.entries.items()
        }
        return Answer(1.0, given, {scope: self.elsewhere + spent.cost for scope, spent in message.spent.items()})

    async def close(self) -> None: ...

    async def until(self, number: int) -> None:
        """Waits until it was sent so many messages."""
        ends_s = time.monotonic() + SOON_S
        while len(self.messages) < number:
            assert time.monotonic() < ends_s
            await asyncio.sleep(0.01)


@pytest.fixture
async def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def ledger(store: FakeStore) -> AsyncIterator[SharedLedger]:
    found = SharedLedger(None, NOWHERE, 0.0, store)
    yield found
    await found.close()


async def leased(ledger: SharedLedger, amount: float) -> Grant:
    return (await ledger.lease("r", {TOKENS: Ask(TERMS, amount)})).grants[TOKENS]


async def test_what_the_ledger_does_not_have_it_gets_of_the_store(store: FakeStore, ledger: SharedLedger) -> None:
    await ledger.sync(Report("r", 1))
    await store.until(1)
    assert (await leased(ledger, 500.0)).amount == 500.0
    (entry,) = store.messages[-1].entries.values()
    assert entry.needed == 500.0
    asked = len(store.messages)
    assert (await leased(ledger, 100.0)).amount == 100.0
    assert len(store.messages) == asked, "it keeps a reserve"


async def test_a_limit_that_a_far_store_was_never_asked_for_begins_with_half_of_an_equal_part(
    store: FakeStore, ledger: SharedLedger
) -> None:
    await ledger.sync(Report("r", 1))
    await store.until(1)
    store.answers = store.far_away
    begun_s = time.monotonic()
    assert (await leased(ledger, 500.0)).amount == 500.0
    assert time.monotonic() - begun_s < SOON_S, "it waits for the answer"
    assert (await leased(ledger, 700.0)).amount == 0.0, "of 3,000, for two clusters: 750"


async def test_a_limit_that_a_far_store_has_told_of_is_not_exceeded(store: FakeStore, ledger: SharedLedger) -> None:
    await ledger.sync(Report("r", 1, holdings={TOKENS: Holding(TERMS, 0.0)}))
    await store.until(1)
    store.answers = store.far_away
    refused = await leased(ledger, 1000.0)
    assert refused.amount == 0.0
    assert 0.0 < refused.wait_s < 0.1, "the answer is under way"


async def test_a_store_that_is_away_is_told_later_what_it_missed(store: FakeStore, ledger: SharedLedger) -> None:
    store.answers = store.refuse
    await ledger.sync(Report("r", 1, holdings={TOKENS: Holding(TERMS, 0.0)}))
    await store.until(1)
    assert (await leased(ledger, 500.0)).amount == 500.0
    store.answers = store.at_once
    await store.until(3)
    again, then = store.messages[1:3]
    assert again == store.messages[0]
    assert then.number == again.number + 1
    assert then.entries[TOKENS].owed > 0
    assert (await ledger.sync(Report("r", 2))).store_age_s < 1.0


async def test_the_spending_of_other_clusters_counts(store: FakeStore, ledger: SharedLedger) -> None:
    store.elsewhere = 70.0
    first = Report("r", 1, spent=(Spending("tenant:a", 30.0),), quotas=("tenant:a",))
    assert (await ledger.sync(first)).spent == {"tenant:a": 30.0}
    await store.until(1)
    assert (await ledger.sync(Report("r", 2, quotas=("tenant:a",)))).spent == {"tenant:a": 100.0}


async def test_a_conversation_that_ends_by_a_bug_is_logged_and_begun_again(
    store: FakeStore, ledger: SharedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    async def bug() -> None:
        raise ValueError("nobody thought of this")

    store.answers = bug
    await ledger.sync(Report("r", 1))
    await store.until(1)
    await asyncio.sleep(0.01)
    assert "nobody thought of this" in caplog.text
    assert logging.ERROR in {record.levelno for record in caplog.records}
    store.answers = store.at_once
    await ledger.sync(Report("r", 2))
    await store.until(2)
    assert store.messages[1] == store.messages[0]


def test_a_ledger_that_was_made_in_one_thread_runs_in_another() -> None:
    """As Ray does it with actors."""
    made = SharedLedger(None, NOWHERE, 0.0, FakeStore())
    answers = []

    async def run() -> None:
        answers.append(await made.sync(Report("r", 1, spent=(Spending("tenant:a", 1.0),))))
        await made.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    assert len(answers) == 1
