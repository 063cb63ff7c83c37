"""Slots that nobody gives back are given back, those in use are not."""

import asyncio
from typing import Any

import pytest
from support.clock import LoopClock, settle

from serve.engine.replica import Slots

AFTER_S = 3600.0
pytestmark = pytest.mark.asyncio(loop_scope="function")


class Engine:
    """An app that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.released: list[str] = []
        self.app = Slots(self, self.released.append, AFTER_S)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()

    def request(self, *slots: str) -> "asyncio.Task[None]":
        async def nothing(*_: Any) -> Any:
            return {}

        headers = [(b"x-specgate-slot", slot.encode()) for slot in slots]
        return asyncio.create_task(self.app({"type": "http", "headers": headers}, nothing, nothing))


async def test_a_slot_without_a_request_is_given_back(clock: LoopClock) -> None:
    engine = Engine()
    request = engine.request("a")
    await settle()
    await clock.advance(2 * AFTER_S)
    assert engine.released == []
    request.cancel()  # as the server does when the gateway is gone
    await settle()
    await clock.advance(AFTER_S / 2)
    assert engine.released == []
    await clock.advance(AFTER_S / 2)
    assert engine.released == ["a"]


async def test_the_next_request_in_a_slot_keeps_it(clock: LoopClock) -> None:
    engine = Engine()
    one, two = engine.request("a"), engine.request("a")
    await asyncio.sleep(0)
    one.cancel()
    await settle()
    await clock.advance(4 * AFTER_S)
    assert engine.released == []
    engine.go.set()
    await two
    await clock.advance(AFTER_S / 2)
    three = engine.request("a")
    await three
    await clock.advance(AFTER_S / 2)
    assert engine.released == []
    await clock.advance(AFTER_S / 2)
    assert engine.released == ["a"]


async def test_requests_without_a_slot_are_answered_all_the_same(clock: LoopClock) -> None:
    engine = Engine()
    engine.go.set()
    await engine.request()
    await clock.advance(2 * AFTER_S)
    assert engine.released == []
