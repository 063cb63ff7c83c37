"""An engine's answer to the client as it arrives: a plain one untouched, any other through what is to look at it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from serve.errors import EngineError
from serve.proxy.exchange import Exchange
from serve.proxy.headers import answered_headers
from serve.proxy.upstream import Answer
from serve.sse import StreamEnd
from serve.telemetry.instruments import Telemetry, fail


class Filter(Protocol):
    """Bytes of a stream in, bytes that may go out.

    Attributes:
        over: Whether what follows is of no use.
    """

    @property
    def over(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...


async def relay(
    exchange: Exchange, answer: Answer, telemetry: Telemetry, watch: Callable[[bytes], None] | None = None
) -> None:
    """Send an engine's answer on, streamed as it arrives or whole.

    Args:
        exchange: Whose answer it is.
        answer: The engine's.
        telemetry: Spans and metrics.
        watch: Gets to see the body's bytes; nobody looks at a plain answer.

    Raises:
        EngineError: The engine broke off; what was sent of a stream is all there is.
    """
    if not answer.is_stream:
        body = await answer.body()
        await exchange.whole(answer.status, answered_headers(answer.headers), body)
        if watch is not None:
            watch(body)
        return
    telemetry.first_token(exchange.arrived, exchange.candidate.pool if exchange.candidate else "")
    await exchange.start_stream(answer.status, answered_headers(answer.headers))
    end = StreamEnd()
    await pass_on(exchange, answer, end if watch is None else _Watched(end, watch))
    if end.failed:
        fail(exchange.span, "the engine failed in the middle of the stream")
    elif not end.done:
        raise EngineError("The engine ended the stream before the answer was complete.")
    await exchange.end()


async def pass_on(exchange: Exchange, answer: Answer, through: Filter) -> None:
    """Send what a filter lets pass of a stream, as it arrives; return when the stream or the filter is over.

    Raises:
        EngineError: The engine broke off.
    """
    if data := through.feed(answer.first):
        await exchange.part(data)
    if through.over:
        return
    write = exchange.write
    if write is None:
        async for part in answer.rest():
            if data := through.feed(part):
                await exchange.part(data)
            if through.over:
                return
        return

    def take(part: bytes) -> asyncio.Future[None] | None:
        data = through.feed(part)
        room = write(data) if data else None
        if through.over:
            answer.stop()
        return room

    await answer.pump(take)


class _Watched:
    """A filter whose input somebody else gets to see too."""

    def __init__(self, inner: Filter, watch: Callable[[bytes], None]) -> None:
        self._inner, self._watch = inner, watch

    @property
    def over(self) -> bool:
        return self._inner.over

    def feed(self, data: bytes) -> bytes:
        self._watch(data)
        return self._inner.feed(data)
