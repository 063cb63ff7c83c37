"""A stream is kept alive while nothing is sent, and only then."""

import asyncio

import pytest
from support.clock import LoopClock

from serve.proxy.keep_alive import PERIOD_S, KeepAlive

pytestmark = pytest.mark.asyncio(loop_scope="function")


class Client:
    """Counts events; `reading` cleared, it does not take the one that is sent."""

    def __init__(self) -> None:
        self.events = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self.keep_alive = KeepAlive(self.take)
        self.keep_alive.watch()

    async def take(self) -> None:
        self.events += 1
        await self.reading.wait()


async def test_silence_is_filled_again_and_again_until_the_stop(clock: LoopClock) -> None:
    client = Client()
    for events in (1, 2, 3):
        await clock.advance(PERIOD_S)
        assert client.events == events
    client.keep_alive.stop()
    await clock.advance(PERIOD_S)
    assert client.events == 3


async def test_a_client_that_reads_nothing_is_sent_one_event_at_a_time(clock: LoopClock) -> None:
    client = Client()
    client.reading.clear()
    for _ in range(3):
        await clock.advance(PERIOD_S)
    assert client.events == 1
    client.reading.set()
    await clock.advance(PERIOD_S)
    assert client.events == 2


async def test_nothing_is_sent_between_the_pieces_of_an_event(clock: LoopClock) -> None:
    client = Client()
    client.keep_alive.within = True
    await clock.advance(PERIOD_S)
    assert client.events == 0
    client.keep_alive.within = False
    await clock.advance(PERIOD_S)
    assert client.events == 1


async def test_what_was_sent_since_the_last_look_stands_in_for_one_event(clock: LoopClock) -> None:
    client = Client()
    client.keep_alive.silent = False
    await clock.advance(PERIOD_S)
    assert client.events == 0
    await clock.advance(PERIOD_S)
    assert client.events == 1
