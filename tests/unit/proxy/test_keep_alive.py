"""A stream is kept alive while nothing is sent, and only then."""

import asyncio

import pytest

from serve.proxy import keep_alive
from serve.proxy.keep_alive import KeepAlive


class Client:
    """Counts events; `reading` cleared, it does not take the one that is sent."""

    def __init__(self) -> None:
        self.events = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self.keep_alive = KeepAlive(self.take)

    async def take(self) -> None:
        self.events += 1
        await self.reading.wait()

    async def until(self, events: int) -> None:
        while self.events < events:  # noqa: ASYNC110 - what it waits for happens in the timer
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "PERIOD_S", 0.001)


async def test_silence_is_filled_again_and_again_until_the_stop() -> None:
    client = Client()
    client.keep_alive.watch()
    await client.until(3)
    client.keep_alive.stop()
    events = client.events
    await asyncio.sleep(0.01)
    assert client.events == events


async def test_a_client_that_reads_nothing_is_sent_one_event_at_a_time() -> None:
    client = Client()
    client.reading.clear()
    client.keep_alive.watch()
    await client.until(1)
    await asyncio.sleep(0.01)
    assert client.events == 1
    client.reading.set()
    await client.until(2)
    client.keep_alive.stop()


async def test_nothing_is_sent_between_the_pieces_of_an_event() -> None:
    client = Client()
    client.keep_alive.within = True
    client.keep_alive.watch()
    await asyncio.sleep(0.01)
    assert client.events == 0
    client.keep_alive.within = False
    await client.until(1)
    client.keep_alive.stop()


async def test_what_was_sent_since_the_last_look_stands_in_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "PERIOD_S", 3600)
    client = Client()
    client.keep_alive.silent = False
    client.keep_alive._look()
    assert client.keep_alive.silent, "it counts once"
    await asyncio.sleep(0)
    assert client.events == 0
    client.keep_alive.stop()
