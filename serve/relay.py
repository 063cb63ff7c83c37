"""A plain answer to the client: the engine's bytes, untouched."""

import asyncio
from collections.abc import Callable

from serve.errors import EngineError
from serve.exchange import Exchange
from serve.protocol import StreamEnd, answered_headers
from serve.telemetry import Telemetry, fail
from serve.upstream import Answer


def _unwatched(data: bytes) -> None:
    """Nobody looks at a plain answer."""


async def relay(
    exchange: Exchange, answer: Answer, telemetry: Telemetry, watch: Callable[[bytes], None] = _unwatched
) -> None:
    """Send an engine's answer on, streamed as it arrives or whole.

    Args:
        exchange: Whose answer it is.
        answer: The engine's.
        telemetry: Spans and metrics.
        watch: Gets to see the body's bytes once they have been sent.

    Raises:
        EngineError: The engine broke off; what was sent of a stream is all there is.
    """
    if not answer.is_stream:
        body = await answer.body()
        await exchange.whole(answer.status, answered_headers(answer.headers), body)
        watch(body)
        return
    telemetry.first_token(exchange.arrived, exchange.candidate.pool if exchange.candidate else "")
    await exchange.start_stream(answer.status, answered_headers(answer.headers))
    end = StreamEnd()
    if data := end.feed(answer.first):
        await exchange.part(data)
    watch(answer.first)
    await _relay_rest(exchange, answer, end, watch)
    if end.failed:
        fail(exchange.span, "the engine failed in the middle of the stream")
    elif not end.done:
        raise EngineError("The engine ended the stream before the answer was complete.")
    await exchange.end()


async def _relay_rest(exchange: Exchange, answer: Answer, end: StreamEnd, watch: Callable[[bytes], None]) -> None:
    write = exchange.write
    if write is None:
        async for part in answer.rest():
            if data := end.feed(part):
                await exchange.part(data)
            watch(part)
        return

    def take(part: bytes) -> asyncio.Future[None] | None:
        data = end.feed(part)
        room = write(data) if data else None
        watch(part)
        return room

    await answer.pump(take)
