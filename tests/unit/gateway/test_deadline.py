"""A body ends in time, or it is cancelled; a cancellation by somebody else stays one."""

import asyncio

import pytest
from support.clock import LoopClock, settle

from serve.gateway.deadline import Deadlines

LIMIT_S = 1800.0
LONG_S = 10 * LIMIT_S
pytestmark = pytest.mark.asyncio(loop_scope="function")


async def test_a_body_that_ends_in_time_is_not_disturbed_afterwards(clock: LoopClock) -> None:
    with Deadlines(LIMIT_S).new():
        pass
    await clock.advance(2 * LIMIT_S)
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_takes_too_long_is_cancelled_and_the_task_goes_on(clock: LoopClock) -> None:
    cancelled = []

    async def body() -> None:
        with Deadlines(LIMIT_S).new():
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    async with clock.hurrying(LIMIT_S):
        with pytest.raises(TimeoutError):
            await body()
    assert cancelled == [True]
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # would raise if the cancellation were still under way


async def test_the_bodys_own_error_passes() -> None:
    with pytest.raises(KeyError), Deadlines(LONG_S).new():
        raise KeyError("own")


async def test_an_error_with_which_a_body_answers_the_cancellation_passes(clock: LoopClock) -> None:
    async def body() -> None:
        with Deadlines(LIMIT_S).new():
            try:
                await asyncio.sleep(LONG_S)
            finally:
                raise KeyError("own")

    async with clock.hurrying(LIMIT_S):
        with pytest.raises(KeyError):
            await body()
    assert asyncio.current_task().cancelling() == 0


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def body() -> None:
        with Deadlines(LONG_S).new():
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(body())
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_by_somebody_else_stays_one_even_if_the_time_is_up_as_well(clock: LoopClock) -> None:
    async def body() -> None:
        with Deadlines(LIMIT_S).new():
            try:
                await asyncio.sleep(LONG_S)
            finally:
                await asyncio.sleep(LONG_S)  # until the time is up

    task = asyncio.create_task(body())
    await settle()
    task.cancel()
    await settle()
    await clock.advance(LIMIT_S)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_each_body_has_its_own_time_though_all_share_a_timer(clock: LoopClock) -> None:
    deadlines = Deadlines(LIMIT_S)
    over: list[str] = []

    async def body(name: str, delay_s: float, takes_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            with deadlines.new():
                await asyncio.sleep(takes_s)
        except TimeoutError:
            over.append(name)

    second_s = LIMIT_S / 2
    bodies = asyncio.gather(body("first", 0, LONG_S), body("quick", 0, 0), body("second", second_s, LONG_S))
    await settle()
    await clock.advance(second_s)
    assert over == []
    await clock.advance(second_s)
    assert over == ["first"]
    await clock.advance(second_s)
    assert over == ["first", "second"]
    await bodies


async def test_the_next_body_has_all_of_its_time_however_old_the_timer_is(clock: LoopClock) -> None:
    deadlines = Deadlines(LIMIT_S)
    with deadlines.new():
        await clock.advance(0.8 * LIMIT_S)
    next_body = asyncio.create_task(forever(deadlines))
    await settle()
    await clock.advance(0.8 * LIMIT_S)
    assert not next_body.done()
    await clock.advance(0.2 * LIMIT_S)
    with pytest.raises(TimeoutError):
        await next_body


async def forever(deadlines: Deadlines) -> None:
    with deadlines.new():
        await asyncio.sleep(LONG_S)
