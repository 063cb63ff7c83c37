"""A body ends in time, or it is cancelled; a cancellation by somebody else stays one."""

import asyncio

import pytest

from serve.gateway.deadline import Deadline

LONG_S = 60.0


async def test_a_body_that_ends_in_time_is_not_disturbed_afterwards() -> None:
    with Deadline(0.01):
        pass
    await asyncio.sleep(0.03)
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_takes_too_long_is_cancelled_and_the_task_goes_on() -> None:
    cancelled = []

    async def body() -> None:
        with Deadline(0.01):
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
    with pytest.raises(KeyError), Deadline(LONG_S):
        raise KeyError("own")


async def test_an_error_with_which_a_body_answers_the_cancellation_passes() -> None:
    async def body() -> None:
        with Deadline(0.01):
            try:
                await asyncio.sleep(LONG_S)
            finally:
                raise KeyError("own")

    with pytest.raises(KeyError):
        await body()
    assert asyncio.current_task().cancelling() == 0


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def body() -> None:
        with Deadline(LONG_S):
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(body())
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_by_somebody_else_stays_one_even_if_the_time_is_up_as_well() -> None:
    async def body() -> None:
        with Deadline(0.01):
            try:
                await asyncio.sleep(LONG_S)
            finally:
                await asyncio.sleep(LONG_S)  # until the time is up

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
