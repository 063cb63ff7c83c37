"""Slots that go from request to request: never too many, none lost, and nobody waits while one is free."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import settle

from serve.errors import OverloadedError, PoolUnavailableError
from serve.routing.fair_queue import Asker
from serve.routing.leases import Lease, Leases, Reserve
from serve.routing.pool import Endpoint
from serve.routing.waiting_room import WaitingTerms


class Pool:
    """Replicas with a number of slots in all; a reservation waits for one, as Ray Serve's does."""

    def __init__(self, slots: int = 1) -> None:
        self.free = asyncio.Semaphore(slots)
        self.held = 0
        self.most = 0
        self.reserved = 0
        self.urls = ["http://a"]
        self.given_back = asyncio.Event()

    async def reserve(self) -> Lease:
        await self.free.acquire()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.free.release()
            raise
        self.held += 1
        self.reserved += 1
        self.most = max(self.most, self.held)
        resources = AsyncExitStack()
        resources.push_async_callback(self._release)
        return Lease(Endpoint(self.urls[self.reserved % len(self.urls)], None, str(self.reserved)), resources)

    async def reserve_elsewhere(self, avoid: frozenset[str]) -> Lease:
        lease = await self.reserve()
        url = next(url for url in self.urls if url not in avoid)
        return Lease(Endpoint(url, None, lease.endpoint.slot), lease.resources)

    async def _release(self) -> None:
        await asyncio.sleep(0)
        self.held -= 1
        self.free.release()
        self.given_back.set()


@asynccontextmanager
async def closed_at_the_end(leases: Leases, pool: Pool) -> AsyncIterator[None]:
    yield
    await leases.close()
    assert pool.held == 0


async def test_the_next_request_takes_the_slot_of_the_last() -> None:
    pool, leases = Pool(), Leases()
    async with closed_at_the_end(leases, pool):
        for _ in range(3):
            async with leases.hold(pool.reserve) as endpoint:
                assert endpoint.slot == "1"
    assert pool.reserved == 1


async def test_a_slot_that_can_not_be_released_is_logged_without_the_exceptions_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def release() -> None:
        raise RuntimeError("".join(("sec", "ret")))

    async def reserve() -> Lease:
        resources = AsyncExitStack()
        resources.push_async_callback(release)
        return Lease(Endpoint("http://a", None, "1"), resources)

    leases = Leases()
    async with leases.hold(reserve):
        pass
    await leases.close()
    await settle()
    assert "could not release a slot: RuntimeError\n" in caplog.text
    assert "secret" not in caplog.text


async def test_a_waiting_request_gets_the_slot_at_once_and_its_own_reservation_is_dropped() -> None:
    pool, leases = Pool(slots=1), Leases()
    async with closed_at_the_end(leases, pool):

        async def request() -> str:
            async with leases.hold(pool.reserve) as endpoint:
                return endpoint.slot

        async with leases.hold(pool.reserve):
            waiting = asyncio.create_task(request())
            await settle()
            assert not waiting.done()
        assert await waiting == "1"
    assert pool.reserved == 1


async def test_an_idle_slot_is_given_back() -> None:
    pool, leases = Pool(), Leases(idle_timeout_s=0.01)
    async with leases.hold(pool.reserve):
        assert pool.held == 1
    await asyncio.wait_for(pool.given_back.wait(), 10)
    assert pool.held == 0


async def test_a_slot_is_not_kept_after_a_request_that_failed() -> None:
    """Its replica may still be working on that request."""
    pool, leases = Pool(), Leases()
    async with closed_at_the_end(leases, pool):
        with pytest.raises(ConnectionError):
            async with leases.hold(pool.reserve):
                raise ConnectionError
        assert not leases.has_idle
        await pool.given_back.wait()
        async with leases.hold(pool.reserve) as endpoint:
            assert endpoint.slot == "2"


async def test_a_slot_of_a_request_that_failed_is_not_handed_to_one_that_waits() -> None:
    pool, leases = Pool(slots=1), Leases()
    async with closed_at_the_end(leases, pool):

        async def request() -> str:
            async with leases.hold(pool.reserve) as endpoint:
                return endpoint.slot

        async def failing() -> None:
            async with leases.hold(pool.reserve):
                await settle()
                raise ConnectionError

        failed, waiting = asyncio.create_task(failing()), asyncio.create_task(request())
        assert await waiting == "2"
        with pytest.raises(ConnectionError):
            await failed


async def test_no_slot_of_a_replica_that_did_not_answer_is_used_again() -> None:
    pool, leases = Pool(slots=4), Leases()
    pool.urls = ["http://a", "http://b"]
    async with closed_at_the_end(leases, pool):
        async with leases.hold(pool.reserve) as b, leases.hold(pool.reserve), leases.hold(pool.reserve):
            assert b.url == "http://b"
        async with leases.hold(pool.reserve), leases.hold(pool.reserve):
            leases.forget(b)
            async with leases.hold(pool.reserve) as left:
                pass
        pool.urls = ["http://a"]
        for _ in range(4):
            async with leases.hold(pool.reserve) as now:
                assert now.url == "http://a"
    assert left is not None


async def test_a_request_that_failed_at_a_replica_takes_no_slot_of_it_that_others_have_left_or_leave() -> None:
    pool, leases = Pool(slots=3), Leases()
    pool.urls, avoid = ["http://a"], frozenset({"http://a"})
    async with closed_at_the_end(leases, pool):
        async with leases.hold(pool.reserve), leases.hold(pool.reserve):
            pass
        pool.urls = ["http://a", "http://b"]
        async with leases.hold(pool.reserve), AsyncExitStack() as busy:  # one slot is idle, and one is free
            await busy.enter_async_context(leases.hold(pool.reserve))
            elsewhere = leases.hold(partial(pool.reserve_elsewhere, avoid), avoid=avoid)
            asking = asyncio.create_task(elsewhere.__aenter__())
            await busy.aclose()
            assert (await asking).url == "http://b"
            await elsewhere.__aexit__(None, None, None)


async def test_who_finds_nowhere_else_to_go_is_told_so_in_time() -> None:
    pool, leases = Pool(slots=1), Leases(WaitingTerms(queue_timeout_s=0.01))
    avoid = frozenset({"http://a"})
    async with closed_at_the_end(leases, pool), leases.hold(pool.reserve):
        with pytest.raises(PoolUnavailableError, match="came free in time"):
            async with leases.hold(partial(pool.reserve_elsewhere, avoid), avoid=avoid):
                pass
        assert leases.requests == 1


async def test_sticky_pools_share_nothing() -> None:
    pool, leases = Pool(slots=2), Leases(idle_timeout_s=0)
    for number in ("1", "2"):
        async with leases.hold(pool.reserve) as endpoint:
            assert endpoint.slot == number
    await leases.close()
    assert pool.held == 0


async def test_why_there_is_no_slot_reaches_the_request() -> None:
    async def full() -> Lease:
        raise PoolUnavailableError("full")

    with pytest.raises(PoolUnavailableError):
        async with Leases().hold(full):
            raise AssertionError("there is none to hold")


async def in_turn(pool: Pool, leases: Leases, tenants: str) -> str:
    """Returns the order in which requests of the tenants are served, all of which wait for one slot."""
    served: list[str] = []

    async def request(tenant: str) -> None:
        async with leases.hold(pool.reserve, asker=Asker(tenant)):
            served.append(tenant)
            await asyncio.sleep(0)

    async with leases.hold(pool.reserve):
        tasks = [asyncio.create_task(request(tenant)) for tenant in tenants]
        await settle()
    await asyncio.gather(*tasks)
    return "".join(served)


async def test_freed_slots_go_to_tenants_in_turn() -> None:
    pool, leases = Pool(slots=1), Leases()
    async with closed_at_the_end(leases, pool):
        assert await in_turn(pool, leases, "aaaab") == "abaaa"
    assert pool.reserved == 1


async def test_new_reservations_go_to_tenants_in_turn_whoever_made_them() -> None:
    pool, leases = Pool(slots=1), Leases(idle_timeout_s=0)
    assert await in_turn(pool, leases, "aaaab") == "abaaa"
    await leases.close()
    assert pool.held == 0


async def test_a_reservation_that_names_a_replica_serves_the_request_that_asked_for_it() -> None:
    pool, leases = Pool(slots=1), Leases(idle_timeout_s=0, interchangeable=False)
    assert await in_turn(pool, leases, "aaaab") == "aaaab"
    await leases.close()
    assert pool.held == 0


async def test_when_the_queue_at_the_pool_is_full_the_tenant_with_most_in_it_is_refused() -> None:
    pool, leases = Pool(slots=1), Leases()

    async def full() -> Lease:
        raise OverloadedError("full")

    async def request(tenant: str, reserve: Reserve) -> str:
        async with leases.hold(reserve, asker=Asker(tenant)):
            return tenant

    async with closed_at_the_end(leases, pool):
        async with leases.hold(pool.reserve):
            heavy = [asyncio.create_task(request("heavy", pool.reserve)) for _ in range(3)]
            await settle()
            light = asyncio.create_task(request("light", full))
            await asyncio.wait([heavy[2]])
            assert not light.done()
        results = await asyncio.gather(*heavy, light, return_exceptions=True)
    assert [isinstance(each, OverloadedError) for each in results] == [False, False, True, False]


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 3),
        st.sampled_from(["fine", "fine", "fails", "leaves"]),
        st.sampled_from([frozenset[str](), frozenset({"http://a"})]),
    ),
    max_size=25,
)


@given(REQUESTS, st.integers(1, 4), st.booleans())
def test_slots_are_neither_lost_nor_made_whatever_requests_do(
    requests: list[tuple[int, int, str, frozenset[str]]], slots: int, interchangeable: bool
) -> None:
    async def run() -> None:
        pool, leases = Pool(slots), Leases(interchangeable=interchangeable)
        pool.urls = ["http://a", "http://b"]
        served = 0

        async def request(start: int, length: int, end: str, avoid: frozenset[str]) -> None:
            nonlocal served
            for _ in range(start):
                await asyncio.sleep(0)
            reserve = partial(pool.reserve_elsewhere, avoid) if avoid else pool.reserve
            async with leases.hold(reserve, asker=Asker(f"{length}"), avoid=avoid) as endpoint:
                assert endpoint.url not in avoid
                served += 1
                for _ in range(length):
                    await asyncio.sleep(0)
                if end == "fails":
                    leases.forget(endpoint)
                    raise ConnectionError

        tasks = [asyncio.create_task(request(*arrival)) for arrival in requests]
        for _ in range(4):
            await asyncio.sleep(0)
        for task, (_, _, end, _) in zip(tasks, requests, strict=True):
            if end == "leaves":
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        await leases.close()
        assert pool.most <= slots
        assert pool.held == 0
        assert served >= sum(end != "leaves" for _, _, end, _ in requests)

    asyncio.run(run())
