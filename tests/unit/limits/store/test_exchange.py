"""The script on a real server, message by message; it takes for the time what the test says."""

from collections.abc import AsyncIterator

import pytest
from support.limits_store import VIRTUAL, StoreServer, needs_server

from serve.limits.messages import Meter
from serve.limits.store.client import RedisStore
from serve.limits.store.messages import Advance, Answer, Entry, Message, Spent

pytestmark = needs_server
TOKENS, SEATS = Meter("tenant:a", "tokens"), Meter("tenant:a", "concurrency")


class Lab:
    """The store, and clusters that say what a test wants."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.now_s = 1_000_000.0

    async def begin(self) -> None:
        await self.forget()
        for _ in range(4):
            await self.after(1.0)
            await self._store.exchange(Message("nobody", 1))

    async def forget(self) -> None:
        await self._store._redis.flushall()
        await self.after(0.0)

    async def after(self, seconds: float) -> None:
        self.now_s += seconds
        await self._store._redis.set("now", repr(self.now_s))

    async def dump(self) -> dict[bytes, bytes]:
        keys = [key for key in await self._store._redis.keys() if key != b"now"]
        return {key: await self._store._redis.get(key) for key in keys}

    async def restore(self, kept: dict[bytes, bytes]) -> None:
        for key, value in kept.items():
            await self._store._redis.set(key, value)

    async def say(self, member: str, number: int, **entry: float) -> Advance:
        """A message about tokens: 100 a second, of which 3,000 may be spent at once."""
        message = Message(member, number, {TOKENS: Entry(**{"rate": 100.0, "capacity": 3000.0, **entry})})  # type: ignore[arg-type]
        return (await self._store.exchange(message)).advances[TOKENS]

    async def claim(self, member: str, number: int, claimed: float, needed: float = 0.0, prev: int = 0) -> Advance:
        """A message about seats, of which there are 8."""
        entry = Entry(rate=0.0, capacity=8.0, claimed=claimed, needed=needed, prev=prev)
        return (await self._store.exchange(Message(member, number, {SEATS: entry}))).advances[SEATS]

    async def spent(self, book: str, month: str, cost: float) -> float:
        found: Answer = await self._store.exchange(Message("a", 1, {}, {"tenant:a": Spent(book, month, cost)}))
        return found.spent["tenant:a"]


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisStore]:
    found = StoreServer(tmp_path_factory.mktemp("store"), persistent=False)
    await found.start()
    store = RedisStore(found.config, VIRTUAL)
    yield store
    await store.close()
    found.stop()


@pytest.fixture
async def lab(server: RedisStore) -> Lab:
    found = Lab(server)
    await found.begin()
    return found


async def test_a_message_that_comes_twice_gets_the_same_answer_and_counts_once(lab: Lab) -> None:
    first = await lab.say("a", 1, needed=500.0, owed=100.0)
    assert (first.amount, first.level) == (500.0, 2400.0)
    assert await lab.say("a", 1, needed=500.0, owed=100.0) == first
    assert (await lab.say("b", 1)).level == 2400.0


async def test_what_is_needed_comes_whole_or_not_at_all_and_says_when(lab: Lab) -> None:
    await lab.say("a", 1, needed=2900.0)
    refused = await lab.say("b", 1, needed=300.0)
    assert (refused.amount, refused.wait_s) == (0.0, 2.0)
    await lab.after(2.0)
    assert (await lab.say("b", 2, needed=300.0, prev=1)).amount == 300.0


async def test_more_than_the_bucket_passes_when_it_is_full_and_leaves_a_debt(lab: Lab) -> None:
    assert (await lab.say("a", 1, needed=5000.0)).amount == 5000.0
    assert (await lab.say("b", 1)).level == -2000.0


async def test_what_is_given_back_runs_over(lab: Lab) -> None:
    await lab.say("a", 1, needed=100.0)
    for number in range(2, 32):  # others are heard, so that the store was not away
        await lab.after(2.0)
        await lab.claim("nobody", number, 0.0, prev=number - 1 if number > 2 else 0)
    assert (await lab.say("a", 2, owed=-100.0, prev=1)).level == 3000.0


async def test_one_that_has_never_been_heard_keeps_half_of_its_equal_part_of_the_share(lab: Lab) -> None:
    assert (await lab.say("a", 1, demand=50.0, share=25.0)).share == 75.0
    assert (await lab.say("b", 1, demand=50.0, share=25.0)).share == 25.0
    assert (await lab.say("a", 2, demand=50.0, share=75.0, prev=1)).share == 50.0
    assert (await lab.say("b", 2, demand=50.0, share=25.0, prev=1)).share == 25.0, "its other may still have 75"
    await lab.say("a", 3, demand=50.0, share=50.0, prev=2)
    assert (await lab.say("b", 3, demand=50.0, share=25.0, prev=2)).share == 50.0


async def test_seats_of_a_cluster_that_died_come_back_and_those_of_others_stay(lab: Lab) -> None:
    assert (await lab.claim("dead", 1, 0.0, needed=5.0)).amount == 5.0
    number = 0
    for _ in range(5):
        await lab.after(1.0)
        number += 1
        assert (await lab.claim("b", number, 0.0, needed=4.0, prev=number - 1)).amount == 0.0
    await lab.after(1.1)
    assert (await lab.claim("b", number + 1, 0.0, needed=8.0, prev=number)).amount == 8.0


async def test_after_its_own_absence_the_store_gives_nothing_until_all_have_told(lab: Lab) -> None:
    assert (await lab.claim("a", 1, 0.0, needed=8.0)).amount == 8.0
    await lab.say("a", 2, needed=100.0)
    await lab.after(60.0)
    early = await lab.claim("b", 1, 0.0, needed=1.0)
    assert (early.amount, early.settling) == (0.0, True)
    await lab.after(1.0)
    await lab.claim("a", 3, 8.0, prev=1)
    await lab.say("a", 4, owed=6100.0, prev=2)  # drawn at its share, which flowed in meanwhile
    await lab.after(1.0)
    await lab.claim("b", 2, 0.0, prev=1)
    await lab.after(1.0)
    assert (await lab.claim("b", 3, 0.0, needed=1.0, prev=2)).amount == 0.0, "they are all in use"
    assert (await lab.say("b", 4)).level == 3000.0, "no debt comes of an outage"


async def test_a_store_that_lost_its_data_begins_empty_and_with_the_debts_that_clusters_were_told(lab: Lab) -> None:
    await lab.say("a", 1, needed=5000.0)
    await lab.forget()
    await lab.after(1.0)
    again = await lab.say("a", 2, prev=1, told=-2000.0, told_at=lab.now_s - 1)
    assert (again.amount, again.level, again.settling) == (0.0, -1900.0, True)
    for number in (3, 4, 5):
        await lab.after(1.0)
        await lab.say("a", number, prev=number - 1)
    last = await lab.say("b", 1)
    assert (last.level, last.settling) == (-1600.0, False)


async def test_a_store_that_lost_its_last_second_notices(lab: Lab) -> None:
    await lab.say("a", 1, needed=100.0)
    kept = await lab.dump()
    await lab.say("a", 2, needed=2900.0, prev=1)
    await lab.restore(kept)
    told = await lab.say("a", 3, prev=2, told=0.0, told_at=lab.now_s)
    assert (told.level, told.settling) == (0.0, True)


async def test_a_month_is_the_sum_of_all_books_however_often_they_are_told(lab: Lab) -> None:
    assert await lab.spent("a", "2026-11", 100.5) == 100.5
    assert await lab.spent("b", "2026-11", 7.0) == 107.5
    assert await lab.spent("a", "2026-11", 100.5) == 107.5
    assert await lab.spent("a", "2026-11", 90.0) == 107.5, "an old message that comes late"
    assert await lab.spent("a", "2026-12", 1.0) == 1.0
    await lab.forget()
    assert await lab.spent("a", "2026-11", 101.0) == 101.0
    assert await lab.spent("b", "2026-11", 7.0) == 108.0, "nothing is lost that a book still has"
