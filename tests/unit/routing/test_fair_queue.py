"""Who is next: tenants share by weight whatever they do, nobody starves or saves up, and slots are kept for the higher
classes, none idle that somebody may have.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import LoopClock, settle

from serve.config.access import PRIORITIES, ReservedClass
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.routing.fair_queue import Asker, FairQueue, QueueReport, ReservedSlots, Turn
from serve.routing.leases import Lease, Leases
from serve.routing.pool import Endpoint, PoolReport
from serve.routing.remote_pool import RemotePool
from serve.routing.waiting_room import WaitingTerms

STARVE_S = 10.0
INTERACTIVE, STANDARD, BATCH = range(len(PRIORITIES))
TENANTS = ("red", "green", "blue")
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 4.0])
COSTS = st.integers(1, 1000)
ASKERS = st.builds(Asker, st.sampled_from(TENANTS), st.just(1.0), st.sampled_from([0, 1, 2]), COSTS)
LONG_STARVE_S = 1000.0
HALF: dict[ReservedClass, float] = {"interactive": 0.5}
SHARES = st.fixed_dictionaries({}, optional={"interactive": st.floats(0.01, 0.4), "standard": st.floats(0.01, 0.4)})
STEPS = st.lists(st.sampled_from([INTERACTIVE, STANDARD, BATCH, "end"]), max_size=60)


def filled(*waiting: Asker) -> FairQueue[int]:
    """Returns a queue in which the askers' items, numbered in their order, have waited since time 0."""
    queue = FairQueue[int](STARVE_S)
    for number, asker in enumerate(waiting):
        queue.add(number, asker, 0.0)
    return queue


def serve(queue: FairQueue[int], now_s: float = 0.0) -> int | None:
    item = queue.first(now_s)
    if item is not None:
        queue.take(item)
    return item


def drained(queue: FairQueue[int], now_s: float = 0.0) -> list[int]:
    return [item for _ in range(len(queue)) if (item := serve(queue, now_s)) is not None]


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    assert drained(filled(*[Asker("red", cost=cost) for cost in (5, 1, 9, 1)])) == [0, 1, 2, 3]


def test_equal_tenants_take_turns_however_much_one_of_them_asks_for() -> None:
    heavy, light = Asker("heavy"), Asker("light")
    assert drained(filled(heavy, heavy, heavy, heavy, light, light)) == [0, 4, 1, 5, 2, 3]


def test_classes_are_served_in_strict_order() -> None:
    askers = [Asker("red", rank=rank) for rank in (BATCH, STANDARD, INTERACTIVE, STANDARD)]
    assert drained(filled(*askers)) == [2, 1, 3, 0]


def test_what_waits_too_long_moves_up_by_one_class() -> None:
    queue = filled(Asker("red", rank=BATCH))
    queue.add(1, Asker("green", rank=STANDARD), STARVE_S - 1)
    queue.add(2, Asker("blue", rank=INTERACTIVE), STARVE_S - 1)
    assert drained(queue, STARVE_S) == [2, 1, 0]
    queue = filled(Asker("red", rank=BATCH), Asker("green"))
    assert drained(queue, STARVE_S - 1) == [1, 0], "not before its time"


def test_promoted_items_share_with_those_of_the_class_above_instead_of_passing_them() -> None:
    queue = filled(*[Asker("red", rank=BATCH)] * 4)
    for number in (4, 5):
        queue.add(number, Asker("green", rank=STANDARD), STARVE_S - 1)
    assert drained(queue, STARVE_S) == [4, 0, 5, 1, 2, 3]


def test_requests_served_without_waiting_count_too() -> None:
    queue = FairQueue[int](STARVE_S)
    queue.add(0, Asker("light"), 0.0)
    for _ in range(3):
        queue.charge(Asker("heavy"))
    queue.add(1, Asker("heavy"), 0.0)
    queue.add(2, Asker("light"), 0.0)
    assert drained(queue) == [0, 2, 1]


def test_what_a_request_used_counts_instead_of_what_it_was_expected_to() -> None:
    queue = filled(*[Asker("long", cost=10)] * 4, *[Asker("short", cost=10)] * 4)
    for number, used in [(0, 30), (4, 5), (5, 5), (6, 5)]:
        assert queue.first(0.0) == number
        turn = queue.take(number)
        turn.settle(used)
        turn.settle(used)
    assert drained(queue) == [7, 1, 2, 3]


def test_a_request_that_never_used_its_slot_is_charged_nothing() -> None:
    queue = filled(Asker("red", cost=10), Asker("red"), Asker("green"))
    queue.take(0).undo()
    assert drained(queue) == [1, 2]


@pytest.mark.parametrize("used", [0.0, -1.0])
def test_requests_that_use_nothing_are_not_next_for_ever(used: float) -> None:
    queue = filled(*[Asker("failing")] * 3, Asker("working"))
    for number in (0, 3, 1):
        assert queue.first(0.0) == number
        queue.take(number).settle(used)


def test_a_queue_reports_what_it_gave_by_weight_since_it_was_last_asked() -> None:
    queue = filled(Asker("red", 2.0, cost=10), Asker("green", rank=BATCH), Asker("blue"))
    turn = queue.take(0)
    assert queue.report().given == {(STANDARD, "red"): 5.0, (BATCH, "green"): 0.0, (STANDARD, "blue"): 0.0}
    turn.settle(4)
    queue.remove(2)
    assert queue.report().given == {(STANDARD, "red"): -3.0, (BATCH, "green"): 0.0}


def test_what_tenants_are_given_alike_elsewhere_puts_none_of_them_back() -> None:
    queue = filled(*[Asker(tenant) for _ in range(40) for tenant in ("red", "blue")])
    for _ in range(20):
        serve(queue)
    queue.report()
    queue.merge(QueueReport({(STANDARD, "red"): 1000.0, (STANDARD, "blue"): 1050.0}))
    served = [serve(queue) for _ in range(17)]
    assert served == list(range(20, 54, 2)), "blue is 50 ahead elsewhere: as far as it may be put back it waits here"


def test_who_is_given_more_elsewhere_is_put_back_here() -> None:
    queue = filled(*[Asker(tenant, cost=10) for tenant in ("red", "green", "blue") * 4])
    assert [serve(queue) for _ in range(3)] == [0, 1, 2]
    queue.report()
    queue.merge(
        QueueReport(
            {(STANDARD, "red"): 17.0, (STANDARD, "green"): 10.0, (STANDARD, "blue"): 10.0, (BATCH, "green"): 99.0}
        )
    )
    assert drained(queue) == [4, 5, 3, 7, 8, 6, 10, 11, 9]


def test_what_a_tenant_is_given_where_it_is_alone_takes_nothing_from_it_here() -> None:
    queue = filled(*[Asker(tenant) for tenant in ("red", "green") * 2])
    queue.report()
    queue.merge(QueueReport({(STANDARD, "blue"): 1000.0}))
    queue.add(4, Asker("blue"), 0.0)
    assert drained(queue) == [0, 1, 4, 2, 3]


def test_who_comes_back_is_next_for_a_round_of_the_slots_and_then_shares() -> None:
    queue = filled(*[Asker("heavy", cost=10)] * 9)
    assert [serve(queue) for _ in range(5)] == [0, 1, 2, 3, 4], "there are five slots"
    for number in range(10, 25):
        queue.add(number, Asker("light", cost=4), 0.0)
    assert [serve(queue) for _ in range(5)] == [10, 11, 12, 13, 14]
    assert [serve(queue) for _ in range(5)] == [5, 15, 16, 17, 6]


def test_a_tenant_that_waits_elsewhere_has_not_gone_away() -> None:
    queue = filled(*[Asker("red", cost=10)] * 40)
    assert [serve(queue) for _ in range(3)] == [0, 1, 2]
    queue.report()
    queue.merge(QueueReport({(STANDARD, "green"): 0.0}))
    queue.add(40, Asker("green", cost=10), 0.0)
    queue.add(41, Asker("green", cost=10), 0.0)
    assert [serve(queue) for _ in range(3)] == [40, 41, 3]


def test_a_request_that_leaves_costs_nothing() -> None:
    queue = filled(Asker("red", cost=1000), Asker("red"), Asker("green"))
    queue.remove(0)
    assert drained(queue) == [1, 2]


def test_the_one_to_refuse_is_the_newest_of_who_has_most_for_its_weight() -> None:
    assert filled().last() is None
    assert filled(Asker("red"), Asker("red"), Asker("green")).last() == 1
    assert filled(Asker("red", 4.0), Asker("red", 4.0), Asker("green")).last() == 2
    assert filled(Asker("red"), Asker("green"), Asker("red")).last() == 2


@given(st.lists(ASKERS), st.integers(0, 100))
def test_as_long_as_anybody_waits_somebody_is_served_each_once(askers: list[Asker], now_s: int) -> None:
    queue = filled(*askers)
    assert sorted(drained(queue, now_s)) == list(range(len(askers)))
    assert serve(queue, now_s) is None
    assert not any(map(queue.waiting, TENANTS))


@given(st.dictionaries(st.sampled_from(TENANTS), WEIGHTS, min_size=2), st.data())
def test_backlogged_tenants_are_served_by_weight_within_one_request_each(
    weights: dict[str, float], data: st.DataObject
) -> None:
    """Between two tenants, what they are served in any stretch, by weight, differs by two largest requests at most."""
    queue = FairQueue[int](STARVE_S)
    backlog = {tenant: data.draw(st.lists(COSTS, min_size=30, max_size=30)) for tenant in weights}
    owners: list[tuple[str, float]] = []
    for tenant, costs in backlog.items():
        for cost in costs:
            queue.add(len(owners), Asker(tenant, weights[tenant], cost=cost), 0.0)
            owners.append((tenant, cost / weights[tenant]))
    bound = max(cost for _, cost in owners)
    served = [Counter[str]()]
    while all(map(queue.waiting, weights)):
        item = serve(queue)
        assert item is not None
        tenant, cost = owners[item]
        served.append(served[-1] + Counter({tenant: cost}))
    for begin in served[::5]:
        shares = [served[-1][tenant] - begin[tenant] for tenant in weights]
        assert max(shares) - min(shares) <= 2 * bound + 1e-6


@given(st.dictionaries(st.sampled_from(TENANTS), WEIGHTS, min_size=2), st.data())
def test_estimates_that_are_wrong_change_no_share(weights: dict[str, float], data: st.DataObject) -> None:
    """What tenants have used differs, by weight, by two largest requests, whatever was expected of them."""
    queue = FairQueue[int](STARVE_S)
    owners: list[tuple[str, float]] = []
    estimates = {tenant: data.draw(COSTS) for tenant in weights}
    for tenant in weights:
        for used in data.draw(st.lists(COSTS, min_size=30, max_size=30)):
            queue.add(len(owners), Asker(tenant, weights[tenant], cost=estimates[tenant]), 0.0)
            owners.append((tenant, used))
    bound = max(used / weights[tenant] for tenant, used in owners)
    served = dict.fromkeys(weights, 0.0)
    while all(map(queue.waiting, weights)):
        item = queue.first(0.0)
        assert item is not None
        tenant, used = owners[item]
        queue.take(item).settle(used)
        served[tenant] += used / weights[tenant]
    assert max(served.values()) - min(served.values()) <= 2 * bound + 1e-6


@given(st.lists(st.dictionaries(st.sampled_from(TENANTS), st.integers(-100, 10**6)), min_size=1, max_size=30))
def test_nobody_is_shut_out_by_what_others_report(reports: list[dict[str, int]]) -> None:
    """Each tenant keeps a tenth of its share here, whatever is said of what it has elsewhere."""
    queue = FairQueue[int](STARVE_S)
    owners = [tenant for tenant in TENANTS for _ in range(30 * len(reports))]
    for number, tenant in enumerate(owners):
        queue.add(number, Asker(tenant), 0.0)
    served = Counter[str]()
    for report in reports:
        for _ in range(30):
            item = serve(queue)
            assert item is not None
            served[owners[item]] += 1
        queue.report()
        queue.merge(QueueReport({(STANDARD, tenant): float(cost) for tenant, cost in report.items()}))
    for tenant in TENANTS:
        assert served[tenant] >= 10 * len(reports) / 10 - len(TENANTS)


@given(st.lists(COSTS, min_size=4), st.integers(1, 1000), st.integers(0, 4))
def test_a_tenant_that_was_idle_has_saved_up_a_round_of_the_slots_at_most(
    while_idle: list[int], cost: int, running: int
) -> None:
    queue = FairQueue[int](STARVE_S)
    turns = [queue.charge(Asker("idle")), *[queue.charge(Asker("busy", cost=each)) for each in while_idle]]
    for turn in turns[: len(turns) - running]:
        turn.end()
    for number in range(60):
        queue.add(number, Asker(("busy", "idle")[number % 2], cost=cost), 0.0)
    first = [serve(queue) for _ in range(30)]
    saved = max(1, running)
    assert 14 <= sum(item is not None and item % 2 for item in first) <= saved + (30 - saved) / 2 + 1


@given(st.lists(ASKERS, min_size=1), st.sampled_from([0, 1, 2]))
def test_nobody_starves_whoever_else_comes(flood: list[Asker], rank: int) -> None:
    """A request of any class is served although a new one, of the first class, comes for each that is served."""
    queue = FairQueue[int](STARVE_S)
    queue.add(-1, Asker("patient", rank=rank), 0.0)
    rounds = 0
    while -1 in queue:
        rounds += 1
        assert rounds < 2 * STARVE_S + 3 * 1000 + 10, "two promotions and the others' turns"
        asker = flood[rounds % len(flood)]
        queue.add(rounds, Asker(asker.tenant, rank=INTERACTIVE, cost=asker.cost), float(rounds))
        serve(queue, float(rounds))


@given(st.lists(st.tuples(ASKERS, st.sampled_from(["add", "add", "next", "remove", "charge"]))))
def test_counts_of_those_that_wait_are_right_whatever_happens(steps: list[tuple[Asker, str]]) -> None:
    queue = FairQueue[int](2.0)
    waiting: dict[int, str] = {}
    for now_s, (asker, step) in enumerate(steps):
        if step == "add":
            queue.add(now_s, asker, now_s)
            waiting[now_s] = asker.tenant
        elif step == "charge":
            queue.charge(asker)
        elif step == "remove" and waiting:
            item, _ = waiting.popitem()
            queue.remove(item)
        elif (served := serve(queue, now_s)) is not None:
            del waiting[served]
        assert len(queue) == len(waiting)
        assert {tenant: queue.waiting(tenant) for tenant in TENANTS} == {
            tenant: sum(each == tenant for each in waiting.values()) for tenant in TENANTS
        }
        last = queue.last()
        assert (last is None) == (not waiting)
        assert last is None or last in waiting


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
    terms = WaitingTerms(queue_timeout_s=10 * LONG_STARVE_S, starve_s=LONG_STARVE_S, reserved=HALF)
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
            await clock.advance(LONG_STARVE_S)
            pool.merge(QueueReport()) if isinstance(pool, Leases) else pool.merge(PoolReport())
        await asyncio.gather(*batch)


async def test_slots_that_other_replicas_no_longer_want_are_taken() -> None:
    pool, slots = pool_of("ray"), Slots(4)
    assert isinstance(pool, Leases)
    async with AsyncExitStack() as held:
        pool.merge(QueueReport(wanted=(0, 0, 6)))
        batch = [ask(pool, slots, BATCH, held) for _ in range(2)]
        await settle()
        assert sum(task.done() for task in batch) == 1
        assert pool.queue.report().wanted == (0, 0, 2)
        pool.merge(QueueReport())
        await asyncio.gather(*batch)


def test_the_last_class_keeps_slots() -> None:
    with pytest.raises(ConfigError, match="batch"):
        GatewayConfig.parse({"models": {}, "limits": {"reserved_slots": {"interactive": 0.5, "standard": 0.5}}})
