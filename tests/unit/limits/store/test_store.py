"""The script on a real server: it books and gives like the ledger's own bucket, once for each number of a report."""

import math
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from support.limits_store import VIRTUAL, StoreServer, needs_server

from serve.limits.bucket import OwnBuckets
from serve.limits.ledger_messages import Grant, Grants, Holding, LimitId, LimitTerms, Statement
from serve.limits.store import RedisStore
from serve.shared.report import Report

pytestmark = needs_server
TOKENS, SEATS = LimitId("tenant:a", "tokens"), LimitId("tenant:a", "concurrency")
RATE, ROOM = LimitTerms(10.0, 300.0), LimitTerms(0.0, 6.0)
MONTH = "2026-11"


class Shared:
    """The store in virtual time.

    Args:
        server: Where it is.
    """

    def __init__(self, server: StoreServer) -> None:
        self._redis: Redis = Redis.from_url(server.config.address)
        self._numbers: dict[str, int] = {}
        self._now_s = 0.0
        self.store = RedisStore(server.config, "book", VIRTUAL)

    async def at(self, now_s: float) -> None:
        self._now_s = now_s
        await self._redis.set("now", f"{now_s:.6f}")

    async def forget(self) -> None:
        await self._redis.flushall()
        await self.at(self._now_s)

    async def report(
        self, replica: str, holdings: dict[LimitId, Holding], *, again: bool = False, age_s: float | None = None
    ) -> dict[LimitId, Grant]:
        number = self._numbers[replica] = self._numbers.get(replica, 0) + (not again)
        report: Report[Statement, Grants] = Report(replica, number, Statement(holdings), age_s=age_s)
        return await self.store.exchange(report, {})

    async def rate(self, replica: str, *, again: bool = False, age_s: float | None = None, **holding: float) -> Grant:
        return (await self.report(replica, {TOKENS: Holding(RATE, **holding)}, again=again, age_s=age_s))[TOKENS]

    async def seats(self, replica: str, **holding: float) -> Grant:
        return (await self.report(replica, {SEATS: Holding(ROOM, **holding)}))[SEATS]

    async def close(self) -> None:
        await self.store.close()
        await self._redis.aclose()


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StoreServer]:
    found = StoreServer(tmp_path_factory.mktemp("store"), persistent=False)
    await found.start()
    yield found
    found.stop()


@pytest.fixture
async def shared(server: StoreServer) -> AsyncIterator[Shared]:
    found = Shared(server)
    await found.at(1000.0)
    await found.forget()
    yield found
    await found.close()


async def test_an_answer_that_got_lost_comes_again_and_is_given_once(shared: Shared) -> None:
    first = await shared.rate("a", needed=100.0)
    assert (first.amount, first.level) == (100.0, 200.0)
    assert await shared.rate("a", needed=100.0, again=True) == first
    assert (await shared.rate("b", needed=200.0)).level == 0.0


async def test_another_ledger_may_ask_again_for_a_replica(shared: Shared, server: StoreServer) -> None:
    first = await shared.rate("a", needed=100.0)
    other = Shared(server)
    assert (await other.rate("a", needed=100.0)) == first, "the number is the replica's, not the ledger's"
    await other.close()


async def test_replicas_of_all_clusters_spend_of_one_bucket_that_fills_with_time(shared: Shared) -> None:
    assert (await shared.rate("a", needed=300.0)).amount == 300.0
    refused = await shared.rate("b", needed=50.0)
    assert (refused.amount, refused.wait_s) == (0.0, 5.0)
    await shared.at(1005.0)
    assert (await shared.rate("b", needed=50.0)).amount == 50.0


async def test_what_is_owed_holds_for_everybody_and_what_comes_back_is_there(shared: Shared) -> None:
    assert (await shared.rate("a", drawn=350.0)).level == -50.0
    assert (await shared.rate("b", needed=10.0)).wait_s == 6.0
    assert (await shared.rate("a", returned=80.0)).level == 30.0
    assert (await shared.rate("b", needed=10.0)).amount == 10.0


async def test_a_request_above_the_burst_passes_when_the_bucket_is_full_and_is_owed(shared: Shared) -> None:
    assert (await shared.rate("a", needed=400.0)).level == -100.0
    await shared.at(1039.0)
    assert (await shared.rate("a", needed=400.0)).wait_s == pytest.approx(1.0)


async def test_in_advance_nobody_gets_more_than_its_part(shared: Shared) -> None:
    assert (await shared.rate("a", wanted=300.0)).amount == 150.0, "there are two clusters"


async def test_seats_are_counted_over_all_replicas_and_those_of_a_silent_one_come_back(shared: Shared) -> None:
    assert (await shared.seats("a", needed=1.0, wanted=4.0)).amount == 5.0
    assert (await shared.seats("b", needed=1.0, wanted=4.0)).amount == 1.0
    assert (await shared.seats("b", held=1.0, needed=1.0)).wait_s == 1.0
    assert (await shared.seats("a", held=2.0)).level == 3.0
    assert (await shared.seats("b", held=1.0, needed=3.0)).amount == 3.0
    await shared.at(1004.1)
    assert (await shared.seats("c", needed=6.0)).amount == 6.0


async def test_a_store_that_lost_its_data_gives_no_second_burst(shared: Shared) -> None:
    """Its bucket begins empty, or with the debt that replicas were told of."""
    level = (await shared.rate("a", needed=300.0)).level
    await shared.forget()
    assert (await shared.rate("a", needed=10.0, level=level, age_s=0.5)).amount == 0.0
    assert (await shared.rate("b", drawn=100.0)).level == -95.0
    await shared.forget()
    assert (await shared.rate("b", level=-95.0, age_s=1.0)).level == -85.0


async def test_a_month_is_the_sum_of_all_books(shared: Shared, server: StoreServer) -> None:
    other = RedisStore(server.config, "another book")
    assert await shared.store.spending({"tenant:a": 10.0, "key:k": 1.0}, MONTH) == {"tenant:a": 10.0, "key:k": 1.0}
    assert await other.spending({"tenant:a": 5.0}, MONTH) == {"tenant:a": 15.0}
    assert await shared.store.spending({"tenant:a": 12.0}, MONTH) == {"tenant:a": 17.0}
    assert await other.spending({"tenant:a": 5.0}, "2026-12") == {"tenant:a": 5.0}
    await other.close()


AMOUNT = st.floats(0, 400).map(lambda amount: round(amount, 3))
STEP = st.tuples(
    st.sampled_from("ab"), st.floats(0, 20).map(lambda by: round(by, 3)),
    st.sampled_from(["needed", "wanted", "drawn", "returned", "seats"]), AMOUNT,
)  # fmt: skip


@given(st.lists(STEP, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_script_gives_what_the_ledgers_own_bucket_would(
    server: StoreServer, steps: list[tuple[str, float, str, float]]
) -> None:
    shared, now_s = Shared(server), 1000.0
    own = OwnBuckets(lambda: now_s)
    await shared.at(now_s)
    await shared.forget()
    for replica, by, what, amount in steps:
        now_s += by
        await shared.at(now_s)
        if what == "seats":
            holdings = {
                SEATS: Holding(ROOM, held=float(amount < 100), needed=float(amount > 200), wanted=amount // 150)
            }
        else:
            holdings = {TOKENS: Holding(RATE, **{what: amount})}
        report: Report[Statement, Grants] = Report(replica, 1, Statement(holdings))
        own.book(report)
        ours = await own.exchange(report, {TOKENS: 2})
        theirs = await shared.report(replica, holdings)
        for id, grant in ours.items():
            assert math.isclose(theirs[id].amount, grant.amount, abs_tol=1e-6)
            assert math.isclose(theirs[id].level, grant.level, abs_tol=1e-4)
    await shared.close()
