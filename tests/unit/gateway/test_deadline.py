"""A body ends in time, or it is cancelled; a cancellation by somebody else stays one."""

import asyncio

import pytest

from serve.gateway.deadline import Deadlines

LONG_S = 60.0


async def test_a_body_that_ends_in_time_is_not_disturbed_afterwards() -> None:
    with Deadlines(0.01).new():
        pass
    await asyncio.sleep(0.03)
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_takes_too_long_is_cancelled_and_the_task_goes_on() -> None:
    cancelled = []

    async def body() -> None:
        with Deadlines(0.01).new():
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    with pytest.raises(TimeoutError):
        await body()
    assert cancelled == [True]
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # would raise if the cancellation were still under way


async def test_the_bodys_own_error_passes() -> None:
    with pytest.raises(KeyError), Deadlines(LONG_S).new():
        raise KeyError("own")


async def test_an_error_with_which_a_body_answers_the_cancellation_passes() -> None:
    async def body() -> None:
        with Deadlines(0.01).new():
            try:
                await asyncio.sleep(LONG_S)
            finally:
                raise KeyError("own")

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


async def test_a_cancellation_by_somebody_else_stays_one_even_if_the_time_is_up_as_well() -> None:
    async def body() -> None:
        with Deadlines(0.01).new():
            try:
                await asyncio.sleep(LONG_S)
            finally:
                await asyncio.sleep(LONG_S)  # until the time is up

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_each_body_has_its_own_time_though_all_share_a_timer() -> None:
    deadlines = Deadlines(0.05)
    over: list[str] = []

    async def body(name: str, delay_s: float, takes_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            with deadlines.new():
                await asyncio.sleep(takes_s)
        except TimeoutError:
            over.append(name)

    await asyncio.gather(body("first", 0, LONG_S), body("quick", 0, 0), body("second", 0.03, LONG_S))
    assert over == ["first", "second"]


async def test_the_next_body_has_all_of_its_time_however_old_the_timer_is() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(0.05)
    with deadlines.new():
        await asyncio.sleep(0.04)
    began_s = loop.time()
    with pytest.raises(TimeoutError):
        await forever(deadlines)
    assert loop.time() - began_s >= 0.05


async def forever(deadlines: Deadlines) -> None:
    with deadlines.new():
        await asyncio.sleep(LONG_S)
