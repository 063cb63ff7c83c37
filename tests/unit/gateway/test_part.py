"""Parts run while a replica serves; when it ends, each is closed, whatever the others do."""

import asyncio
import logging

import pytest
from support.clock import settle

from serve.gateway.part import OFF, Part, running


class Feature:
    """A feature that notes what is done with it.

    Args:
        name: In the notes.
        notes: Of all features.
        fails: `run` and `close` raise.
    """

    def __init__(self, name: str, notes: list[str], *, fails: bool = False) -> None:
        self.part = Part(run=self.run, close=self.close)
        self._name, self._notes, self._fails = name, notes, fails

    async def run(self) -> None:
        self._notes.append(f"{self._name} runs")
        if self._fails:
            raise ValueError(f"{self._name} is broken")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # the end of a report
            self._notes.append(f"{self._name} has ended")

    async def close(self) -> None:
        self._notes.append(f"{self._name} is closed")
        if self._fails:
            raise ValueError(f"{self._name} does not close")


async def test_all_parts_run_and_are_closed_the_last_one_first_once_none_runs() -> None:
    notes: list[str] = []
    async with running([Feature("a", notes).part, OFF, Feature("b", notes).part]):
        await asyncio.sleep(0)
        assert notes == ["a runs", "b runs"]
    assert notes[2:] == ["a has ended", "b has ended", "b is closed", "a is closed"]


async def test_a_part_that_fails_is_logged_and_keeps_no_other_from_running_and_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[str] = []
    parts = [Feature("a", notes).part, Feature("b", notes, fails=True).part, Feature("c", notes).part]

    async def serve() -> None:
        async with running(parts):
            await settle()
            assert notes == ["a runs", "b runs", "c runs"]

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="b does not close"):
        await serve()
    assert notes[-3:] == ["c is closed", "b is closed", "a is closed"]
    assert "a background task of this replica has ended" in caplog.text


async def test_a_part_that_fails_begins_again_ever_later_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.gateway.part.AGAIN_S", 0.001)
    begun, works, failed = 0, asyncio.Event(), []

    async def run() -> None:
        nonlocal begun
        begun += 1
        if begun <= 5:
            raise ExceptionGroup("several", [ValueError("broken")])
        works.set()
        await asyncio.Event().wait()

    async with running([Part("load", run=run), OFF], failed.append):
        await asyncio.wait_for(works.wait(), 10)
    assert failed == ["load"] * 5


async def test_parts_are_closed_when_serving_fails() -> None:
    notes: list[str] = []

    async def serve() -> None:
        async with running([Feature("a", notes).part]):
            await settle()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await serve()
    assert notes[-1] == "a is closed"


async def test_a_part_that_does_not_end_holds_up_no_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.gateway.part.STOP_S", 0.01)
    released, closed = asyncio.Event(), []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()

    async def close() -> None:
        closed.append(True)

    async with running([Part(run=run, close=close)]):
        await asyncio.sleep(0)
    assert closed
    released.set()


async def test_a_part_that_is_off_has_no_routes_and_nothing_to_do() -> None:
    assert not OFF.routes.routes
    await OFF.run()
    await OFF.close()
