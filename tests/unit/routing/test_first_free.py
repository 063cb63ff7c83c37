"""The first pool that has a slot: an idle pool is never waited for, and no slot is lost in the race."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import settle
from support.holds import as_hold

from serve.errors import GatewayError, OverloadedError
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.first_free import Slot, first_free
from serve.routing.pool import NO_AFFINITY, Affinity, Endpoint
from serve.routing.remote_pool import RemotePool

FOR_EVER_S = 1e6


class Pool:
    """A pool whose slots appear when a test says so.

    Attributes:
        asked: Reservations that were begun.
        held: Slots that are held now.
    """

    def __init__(self, slots: int = 1, head_start_s: float = FOR_EVER_S, error: GatewayError | None = None) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.head_start_s = head_start_s
        self.ready = False
        self.full = slots == 0
        self.replicas = 0
        self.asked = 0
        self.held = 0
        self._error = error

    @as_hold
    @asynccontextmanager
    async def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> AsyncIterator[Endpoint]:
        self.asked += 1
        if self._error is not None:
            raise self._error
        async with self.slots:
            self.held += 1
            try:
                yield Endpoint("", None)
            finally:
                self.held -= 1

    async def facts(self) -> dict[str, str]:
        return {}

    def forget(self, endpoint: Endpoint) -> None: ...

    async def close(self) -> None: ...


async def winner(*pools: Pool) -> Slot:
    async with AsyncExitStack() as resources:
        slot = await first_free(pools, NO_AFFINITY, ANONYMOUS, resources.push_async_exit)
        assert [pool.held for pool in pools] == [number == slot.number for number in range(len(pools))]
    assert not any(pool.held for pool in pools)
    return slot


async def test_the_preferred_pool_has_a_slot_and_no_other_is_asked() -> None:
    preferred, other = Pool(), Pool()
    assert (await winner(preferred, other)).number == 0
    assert other.asked == 0


async def test_a_full_pool_is_not_even_asked_while_another_has_room() -> None:
    full, other = Pool(slots=0), Pool()
    assert (await winner(full, other)).number == 1
    assert full.asked == 0


async def test_the_next_pool_is_asked_when_the_preferred_one_has_had_its_head_start() -> None:
    slow, other = Pool(slots=0, head_start_s=0.0), Pool()
    slow.full = False  # nobody knows that it is
    assert (await winner(slow, other)).number == 1


async def test_of_two_full_pools_the_first_that_has_a_slot_serves() -> None:
    for number in (0, 1):
        pools = Pool(slots=0), Pool(slots=0)
        asyncio.get_running_loop().call_later(0.01, pools[number].slots.release)
        assert (await winner(*pools)).number == number


async def test_a_pool_that_refuses_is_named_and_the_next_is_asked_at_once() -> None:
    slot = await winner(Pool(error=OverloadedError("full")), Pool())
    assert (slot.number, slot.refused) == (1, frozenset({0}))


async def test_the_last_refusal_is_the_error() -> None:
    with pytest.raises(OverloadedError, match="second"):
        await winner(Pool(error=OverloadedError("first")), Pool(error=OverloadedError("second")))


async def test_a_client_that_leaves_the_race_leaves_no_slot_taken() -> None:
    pools = Pool(slots=0), Pool(slots=0)
    racing = asyncio.create_task(first_free(pools, NO_AFFINITY, ANONYMOUS, AsyncExitStack().push_async_exit))
    await settle()
    for pool in pools:
        pool.slots.release()
    racing.cancel()
    await asyncio.gather(racing, return_exceptions=True)
    assert [pool.held for pool in pools] == [0, 0]


async def test_a_pool_that_loses_the_race_charges_nothing_although_it_had_a_slot_too() -> None:
    heavy = Asker("heavy", cost=1000)
    one, two = (RemotePool(Endpoint("", None), {}, slots=1) for _ in range(2))
    async with one.reserve(), two.reserve():
        racing = asyncio.create_task(first_free([one, two], NO_AFFINITY, heavy, AsyncExitStack().push_async_exit))
        await settle()
    assert (await racing).number == 0, "both slots came free in one moment"
    order: list[str] = []

    async def ask(tenant: str) -> None:
        async with two.reserve(asker=Asker(tenant)):
            order.append(tenant)

    async with two.reserve():
        tasks = [asyncio.create_task(ask(tenant)) for tenant in ("light", "heavy")]
        await settle()
    await asyncio.gather(*tasks)
    assert order == ["heavy", "light"]


@given(
    slots=st.lists(st.integers(0, 2), min_size=2, max_size=4),
    known=st.booleans(),
    requests=st.integers(1, 12),
    leavers=st.sets(st.integers(0, 11)),
)
def test_no_slot_is_lost_and_nobody_waits_beside_a_free_one(
    slots: list[int], known: bool, requests: int, leavers: set[int]
) -> None:
    async def play() -> None:
        pools = [Pool(number, head_start_s=0.0) for number in slots]
        for pool in pools:
            pool.full = pool.full and known

        async def request() -> None:
            async with AsyncExitStack() as resources:
                await first_free(pools, NO_AFFINITY, ANONYMOUS, resources.push_async_exit)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(request()) for _ in range(requests)]
        for turn, number in enumerate(sorted(leavers)):
            await asyncio.sleep(0)
            if number < requests and turn % 2:
                tasks[number].cancel()
        for pool in pools:
            pool.slots.release()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        await asyncio.sleep(0)
        assert [pool.held for pool in pools] == [0] * len(pools)
        assert [pool.slots._value for pool in pools] == [number + 1 for number in slots]

    asyncio.run(play())
