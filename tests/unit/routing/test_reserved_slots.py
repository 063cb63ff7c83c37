"""Slots are kept for the higher classes, and none is idle that somebody may have."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import LoopClock, settle

from serve.config.access import PRIORITIES, ReservedClass
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import Asker, FairQueue, QueueReport, Turn
from serve.routing.leases import Lease, Leases
from serve.routing.remote_pool import RemotePool
from serve.routing.reserved_slots import ReservedSlots
from serve.routing.waiting_room import WaitingTerms

STARVE_S = 1000.0
INTERACTIVE, STANDARD, BATCH = range(len(PRIORITIES))
HALF: dict[ReservedClass, float] = {"interactive": 0.5}
SHARES = st.fixed_dictionaries({}, optional={"interactive": st.floats(0.01, 0.4), "standard": st.floats(0.01, 0.4)})
STEPS = st.lists(st.sampled_from([INTERACTIVE, STANDARD, BATCH, "end"]), max_size=60)


@given(SHARES, st.integers(1, 20), STEPS)
def test_lower_classes_leave_what_is_reserved_and_no_other_slot_is_idle(
    shares: dict[ReservedClass, float], slots: int, steps: list[int | str]
) -> None:
    queue = FairQueue[int](1000.0, ReservedSlots(shares, lambda: slots))
    held: list[tuple[int, Turn]] = []
    ranks: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            queue.add(number, Asker("red", rank=step), 0.0)
            ranks[number] = step
        elif held:
            held.pop(0)[1].end()
        assert min(queue.eligible(0.0), slots - len(held)) > 0 or len(held) == slots or queue.first(0.0) is None
        while len(held) < slots and (item := queue.first(0.0)) is not None:
            held.append((ranks.pop(item), queue.take(item)))
        free = slots - len(held)
        reserved_above, is_short = 0.0, False
        for rank in (STANDARD, BATCH):
            reserved_above += shares.get(PRIORITIES[rank - 1], 0.0) * slots  # type: ignore[call-overload]
            lower = sum(each >= rank for each, _ in held)
            assert lower <= max(1.0, slots - reserved_above), "the last slot is for everybody"
            is_short |= lower + 1 > slots - reserved_above - 2  # and what is above a class is above those below it
            assert is_short or not free or rank not in ranks.values(), "it waits only for what is reserved"
        assert not free or INTERACTIVE not in ranks.values()


@given(st.lists(st.integers(0, 50), min_size=2, max_size=5), st.integers(1, 64))
def test_gateway_replicas_divide_what_is_not_reserved_by_what_they_want(wanted: list[int], slots: int) -> None:
    total = 0
    for mine in wanted:
        reserved = ReservedSlots(HALF, lambda: slots)
        reserved.merge((0, 0, sum(wanted) - mine))
        total += reserved.eligible([0, 0, mine])
    assert total <= slots // 2 + len(wanted), "each may have one"
    assert total >= min(sum(wanted), slots // 2) - len(wanted), "rounded down"


def test_where_the_number_of_slots_is_unknown_none_is_reserved() -> None:
    for unknown in (None, 0):
        reserved = ReservedSlots(HALF, lambda unknown=unknown: unknown)  # type: ignore[misc]
        assert reserved.eligible([3, 3, 3]) == 9
        assert reserved.may_have(BATCH, [0, 0, 9])


class Slots:
    """A pool's free slots, as Ray Serve's router gives them to reservations."""

    def __init__(self, number: int) -> None:
        self.free = asyncio.Semaphore(number)

    async def reserve(self) -> Lease:
        await self.free.acquire()
        resources = AsyncExitStack()
        resources.callback(self.free.release)
        return Lease(Endpoint("", None), resources)


def ask(pool: RemotePool | Leases, slots: Slots, rank: int, held: AsyncExitStack) -> asyncio.Task[Endpoint]:
    asker = Asker("red", rank=rank)
    hold = pool.reserve(asker=asker) if isinstance(pool, RemotePool) else pool.hold(slots.reserve, asker=asker)
    return asyncio.create_task(held.enter_async_context(hold))


def pool_of(kind: str) -> RemotePool | Leases:
    terms = WaitingTerms(queue_timeout_s=10 * STARVE_S, starve_s=STARVE_S, reserved=HALF)
    return Leases(terms, slots=lambda: 4) if kind == "ray" else RemotePool(Endpoint("", None), {}, 4, terms)


@pytest.mark.parametrize("kind", ["ray", "remote"])
async def test_a_pool_full_of_batch_requests_has_slots_for_interactive_ones(kind: str) -> None:
    pool, slots = pool_of(kind), Slots(4)
    async with AsyncExitStack() as lower, AsyncExitStack() as higher:
        batch = [ask(pool, slots, BATCH, lower) for _ in range(6)]
        await settle()
        assert sum(task.done() for task in batch) == 2
        interactive = [ask(pool, slots, INTERACTIVE, higher) for _ in range(2)]
        await settle()
        assert all(task.done() for task in interactive)
        await higher.aclose()
        await settle()
        assert sum(task.done() for task in batch) == 2, "what the higher class had is not for the lower one"
        await lower.aclose()
        await settle()
        assert sum(task.done() for task in batch) == 4, "what the lower class had is"
        await lower.aclose()
        await asyncio.gather(*batch)
    if isinstance(pool, Leases):
        await pool.close()
        assert slots.free._value == 4


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize("kind", ["ray", "remote"])
async def test_who_has_waited_long_enough_gets_what_is_reserved(kind: str, clock: LoopClock) -> None:
    pool, slots = pool_of(kind), Slots(4)
    async with AsyncExitStack() as held:
        batch = [ask(pool, slots, BATCH, held) for _ in range(4)]
        await settle()
        assert sum(task.done() for task in batch) == 2
        for _ in range(2):  # up by a class each time
            await clock.advance(STARVE_S)
            pool.merge(QueueReport())
        await asyncio.gather(*batch)


async def test_slots_that_other_replicas_no_longer_want_are_taken() -> None:
    pool, slots = pool_of("ray"), Slots(4)
    async with AsyncExitStack() as held:
        pool.merge(QueueReport(wanted=(0, 0, 6)))
        batch = [ask(pool, slots, BATCH, held) for _ in range(2)]
        await settle()
        assert sum(task.done() for task in batch) == 1
        assert pool.report().wanted == (0, 0, 2)
        pool.merge(QueueReport())
        await asyncio.gather(*batch)


def test_the_last_class_keeps_slots() -> None:
    with pytest.raises(ConfigError, match="batch"):
        GatewayConfig.parse({"models": {}, "limits": {"reserved_slots": {"interactive": 0.5, "standard": 0.5}}})
