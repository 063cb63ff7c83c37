"""Long work in slices: other tasks have their turn, and the result is the generator's own."""

import asyncio
import threading
from collections.abc import Generator

import pytest

from serve.guard import long_work


async def test_the_result_and_errors_are_those_of_the_work() -> None:
    def good() -> Generator[None, None, str]:
        yield
        return "done"

    def bad() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    assert await long_work.in_slices(good()) == "done"
    with pytest.raises(ValueError, match="broken"):
        await long_work.in_slices(bad())


async def test_other_tasks_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "_SLICE_S", -1.0)
    order: list[str] = []

    def work() -> Generator[None, None, None]:
        for _ in range(3):
            order.append("work")
            yield

    async def other() -> None:
        while order.count("work") < 3:
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(long_work.in_slices(work()), other())
    assert "work work" not in " ".join(order)


@pytest.mark.parametrize("aside", [False, True])
async def test_work_runs_beside_the_event_loop_where_that_is_asked_for(aside: bool) -> None:
    def work() -> Generator[None, None, threading.Thread]:
        yield
        return threading.current_thread()

    assert (await long_work.in_slices(work(), aside=aside) is not threading.main_thread()) is aside


async def test_errors_of_work_beside_the_event_loop_are_its_own() -> None:
    def bad() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await long_work.in_slices(bad(), aside=True)
