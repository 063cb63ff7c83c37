"""Slots that nobody gives back are given back, those in use are not."""

import asyncio
from typing import Any

from serve.engine.slots import Slots

AFTER_S = 0.05


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


async def test_a_slot_without_a_request_is_given_back() -> None:
    engine = Engine()
    request = engine.request("a")
    await asyncio.sleep(2 * AFTER_S)
    assert engine.released == []
    request.cancel()  # as the server does when the gateway is gone
    await asyncio.sleep(4 * AFTER_S)
    assert engine.released == ["a"]


async def test_the_next_request_in_a_slot_keeps_it() -> None:
    engine = Engine()
    one, two = engine.request("a"), engine.request("a")
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.sleep(4 * AFTER_S)
    assert engine.released == []
    engine.go.set()
    await two
    three = engine.request("a")
    await three
    await asyncio.sleep(4 * AFTER_S)
    assert engine.released == ["a"]


async def test_requests_without_a_slot_are_answered_all_the_same() -> None:
    engine = Engine()
    engine.go.set()
    await engine.request()
    await asyncio.sleep(2 * AFTER_S)
    assert engine.released == []
