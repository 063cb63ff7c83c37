"""What an exchange sends when its response cannot begin, and while its stream is silent."""

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN
from support.clock import LoopClock

from serve.errors import GatewayError
from serve.proxy.exchange import KEEP_ALIVE_S, Exchange, KeepAlive

BROKEN = [(b"x-odd", b"1\n")]
pytestmark = pytest.mark.asyncio(loop_scope="function")


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_instead_of_a_head_that_cannot_be_sent_is_a_response_of_its_own(streamed: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if BROKEN[0] in message.get("headers", ()):
            raise ValueError("a header holds a line break")
        sent.append(message)

    exchange = Exchange("/v1/chat/completions", {}, send, "r1", INVALID_SPAN)
    with pytest.raises(ValueError, match="line break"):
        await (exchange.start_stream(200, BROKEN) if streamed else exchange.send_whole(200, BROKEN, b"{}"))
    await exchange.refuse(GatewayError("Internal error."))
    head, body = sent
    assert (head["type"], head["status"]) == ("http.response.start", 500)
    assert body["body"].startswith(b'{"error":{"message":"Internal error."')


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
        await clock.advance(KEEP_ALIVE_S)
        assert client.events == events
    client.keep_alive.stop()
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 3


async def test_a_client_that_reads_nothing_is_sent_one_event_at_a_time(clock: LoopClock) -> None:
    client = Client()
    client.reading.clear()
    for _ in range(3):
        await clock.advance(KEEP_ALIVE_S)
    assert client.events == 1
    client.reading.set()
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 2


async def test_nothing_is_sent_between_the_pieces_of_an_event(clock: LoopClock) -> None:
    client = Client()
    client.keep_alive.within = True
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 0
    client.keep_alive.within = False
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 1


async def test_what_was_sent_since_the_last_look_stands_in_for_one_event(clock: LoopClock) -> None:
    client = Client()
    client.keep_alive.silent = False
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 0
    await clock.advance(KEEP_ALIVE_S)
    assert client.events == 1
