"""Who waits gets a slot, is refused, or waits in vain; a slot is never lost to a client that has left."""

import asyncio

import pytest

from serve.errors import EngineError, OverloadedError, PoolUnavailableError
from serve.routing.fair_queue import Asker
from serve.routing.waiting_room import WaitingRoom, WaitingTerms

RED, GREEN = Asker("red"), Asker("green")


def room_of(returned: list[str] | None = None, **terms: float) -> WaitingRoom[str]:
    return WaitingRoom(WaitingTerms(**terms), "m/p", (returned if returned is not None else []).append)  # type: ignore[arg-type]


async def waiting_in(room: WaitingRoom[str], *askers: Asker) -> list[asyncio.Task[str]]:
    async def slot(asker: Asker) -> str:
        return (await room.wait(room.enter(asker)))[0]

    tasks = [asyncio.create_task(slot(asker)) for asker in askers]
    await asyncio.sleep(0)
    return tasks


async def test_slots_go_to_tenants_in_turn() -> None:
    room = room_of()
    tasks = await waiting_in(room, RED, RED, GREEN)
    for slot in "abc":
        assert room.hand_out(slot)
    assert not room.hand_out("d")
    assert await asyncio.gather(*tasks) == ["a", "c", "b"]


async def test_a_full_room_refuses_the_newest_of_who_has_most_in_it() -> None:
    room = room_of(queued=2)
    tasks = await waiting_in(room, RED, RED)
    tasks += await waiting_in(room, GREEN)
    with pytest.raises(OverloadedError, match="m/p"):
        await tasks[1]
    with pytest.raises(OverloadedError):
        await room.wait(room.enter(RED))
    assert len(room.queue) == 2
    assert not tasks[0].done()
    assert not tasks[2].done()


async def test_a_tenant_with_a_limit_of_its_own_is_refused_before_the_room_is_full() -> None:
    room = room_of()
    limited = Asker("red", queued=1)
    await waiting_in(room, limited)
    with pytest.raises(OverloadedError, match="'red'") as raised:
        room.enter(limited)
    assert raised.value.retry_after_s == 2.0
    await waiting_in(room, GREEN)
    assert len(room.queue) == 2


async def test_a_slot_that_comes_as_its_client_leaves_is_given_back() -> None:
    returned: list[str] = []
    room = room_of(returned)
    (task,) = await waiting_in(room, RED)
    assert room.hand_out("a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert returned == ["a"]
    tasks = await waiting_in(room, RED, GREEN)
    assert room.hand_out("b")
    assert await tasks[0] == "b", "nor is its tenant charged"


async def test_no_slot_and_no_error_is_wasted_on_a_client_that_has_just_left() -> None:
    room = room_of()
    left, gone, stays = await waiting_in(room, RED, GREEN, GREEN)
    left.cancel()
    assert room.hand_out("a")
    assert await gone == "a"
    (leaves,) = await waiting_in(room, GREEN)
    leaves.cancel()
    room.refuse_one(EngineError("no engine"))
    with pytest.raises(EngineError):
        await stays


async def test_a_wait_ends() -> None:
    room = room_of(queue_timeout_s=0.01)
    with pytest.raises(PoolUnavailableError, match="m/p"):
        await room.wait(room.enter(RED))
    assert len(room.queue) == 0
    room.refuse_one(EngineError("for nobody"))
