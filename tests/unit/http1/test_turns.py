"""However many have a piece of work to do, the loop does a few and then looks after everybody else."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator

import pytest

from serve.http1 import turns
from serve.http1.turns import Burst, LoopTurns, in_slices, turn

Turn = Callable[[], Awaitable[None]]


def in_turns(count: int, pieces: int, done: list[int], turn: Turn = turn) -> list[asyncio.Task[None]]:
    async def work(number: int) -> None:
        for _ in range(pieces):
            await turn()
            done.append(number)

    return [asyncio.create_task(work(number)) for number in range(count)]


async def most_at_once(done: list[int], tasks: list[asyncio.Task[None]]) -> int:
    """The most pieces that were done between two turns of somebody else."""
    most = 0
    while not all(task.done() for task in tasks):
        before = len(done)
        await asyncio.sleep(0)
        most = max(most, len(done) - before)
    return most


async def test_all_of_them_come_to_their_end_in_order() -> None:
    done: list[int] = []
    await asyncio.gather(*in_turns(300, 2, done))
    assert done[:300] == list(range(300))
    assert sorted(done[300:]) == list(range(300))


@pytest.mark.parametrize(("piece_s", "most"), [(0.0, 64), (0.001, 16), (0.1, 16)])
async def test_others_wait_for_a_few_pieces_and_fewer_where_they_are_long(
    piece_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    monkeypatch.setattr(turns, "monotonic", lambda: 1.0 + len(done) * piece_s)
    turn = LoopTurns().next
    tasks = in_turns(250, 2, done, turn)
    assert 0 < await most_at_once(done, tasks) <= most
    if piece_s == 0.1:
        tasks = in_turns(20, 1, done, turn)
        assert await most_at_once(done, tasks) == 1


async def test_who_leaves_while_waiting_holds_nobody_up() -> None:
    done: list[int] = []
    tasks = in_turns(100, 1, done)
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == list(range(1, 100, 2))


async def test_a_few_begin_at_once_and_a_crowd_in_turns() -> None:
    burst = Burst()
    turns = LoopTurns()

    async def begin() -> None:
        if burst.is_crowd():
            await turns.next()

    done: list[int] = []
    assert await most_at_once(done, in_turns(250, 1, done, begin)) <= 16 + 64
    assert done == list(range(250))
    tasks = in_turns(16, 1, done, begin)
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks)


async def test_the_result_and_errors_are_those_of_the_work() -> None:
    def good() -> Generator[None, None, str]:
        yield
        return "done"

    def bad() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    assert await in_slices(good()) == "done"
    with pytest.raises(ValueError, match="broken"):
        await in_slices(bad())


async def test_other_tasks_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_SLICE_S", -1.0)
    order: list[str] = []

    def work() -> Generator[None, None, None]:
        for _ in range(3):
            order.append("work")
            yield

    async def other() -> None:
        while order.count("work") < 3:
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(in_slices(work()), other())
    assert "work work" not in " ".join(order)


@pytest.mark.parametrize("aside", [False, True])
async def test_work_runs_beside_the_event_loop_where_that_is_asked_for(aside: bool) -> None:
    def work() -> Generator[None, None, threading.Thread]:
        yield
        return threading.current_thread()

    assert (await in_slices(work(), aside=aside) is not threading.main_thread()) is aside


async def test_errors_of_work_beside_the_event_loop_are_its_own() -> None:
    def bad() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await in_slices(bad(), aside=True)


async def test_who_comes_after_another_is_served_is_no_crowd_however_fast_that_was() -> None:
    burst = Burst()
    for _ in range(250):
        assert not burst.is_crowd()
        await asyncio.sleep(0)
