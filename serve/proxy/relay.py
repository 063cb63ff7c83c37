"""Relays an engine's response to the client as it arrives: untouched, or through a filter."""

import asyncio
from typing import Protocol

from serve.errors import EngineError
from serve.http1.asgi import Drain, Sink
from serve.proxy.attempts import Attempt
from serve.proxy.exchange import Exchange
from serve.proxy.headers import response_headers
from serve.proxy.refusal import readable_refusal
from serve.proxy.stream_end import StreamEnd
from serve.proxy.upstream_response import UpstreamResponse
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import fail

PIECE_BYTES = 8 * 1024  # that a filter gets at once: a read can hold 20,000 tiny frames, 100 ms of work for the guard
_MAX_ERROR_BYTES = 1024 * 1024  # of the body of an error


class Observer(Protocol):
    """Gets the bytes of a response as well.

    Attributes:
        slow: True if what it does next may take longer than other requests should wait.
    """

    @property
    def slow(self) -> bool: ...

    def feed(self, data: bytes) -> None: ...


class Filter(Protocol):
    """Turns the bytes of a stream into the bytes that may be sent.

    Attributes:
        over: True if the filter needs nothing more of the stream.
        slow: True if what it does next may take longer than other requests should wait.
    """

    @property
    def over(self) -> bool: ...

    @property
    def slow(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...


async def relay(exchange: Exchange, attempt: Attempt, telemetry: Telemetry, observer: Observer | None = None) -> None:
    """Sends an engine's response to the client, streamed as it arrives or whole.

    Args:
        exchange: The client's side.
        attempt: The engine's response.
        telemetry: Spans and metrics.
        observer: Gets the bytes of the body as well; None for a plain response.

    Raises:
        EngineError: The engine broke off; of a stream, part is already sent.
    """
    response = attempt.response
    if not response.is_stream:
        headers = response_headers(response.headers)
        if response.status == 200:
            body = await response.body()
        else:
            headers, body = readable_refusal(response.status, headers, await response.body(_MAX_ERROR_BYTES))
        await exchange.whole(response.status, headers, body)
        if observer is not None:
            observer.feed(body)
        return
    telemetry.first_token(exchange.arrived_s, exchange.attribution.model, attempt.candidate.pool)
    await exchange.start_stream(response.status, response_headers(response.headers))
    end = StreamEnd()
    try:
        await relay_stream(exchange, response, end if observer is None else _ObservedFilter(end, observer))
    except EngineError:
        await _complete_frame(exchange, end)
        if not end.done:  # after `[DONE]` nothing is missing: an error would undo an answer that was complete
            raise
    else:
        await _complete_frame(exchange, end)
    if end.failed:
        fail(exchange.span, EngineError.default_code)
        detail, pool = "the engine failed in the middle of a stream", attempt.candidate.pool
        faults = exchange.attribution.faults
        telemetry.log.add_fault(faults, exchange.request_id, pool, EngineError.default_code, detail)
    elif not end.done:
        raise EngineError("The engine ended the stream before the answer was complete.")
    await exchange.end()


async def _complete_frame(exchange: Exchange, end: StreamEnd) -> None:
    if blank_line := end.finish():
        await exchange.part(blank_line)


async def relay_stream(exchange: Exchange, response: UpstreamResponse, through: Filter) -> None:
    """Sends what a filter lets through as it arrives; returns when the stream or the filter is over.

    Args:
        exchange: The client's side.
        response: The engine's response.
        through: The filter.

    Raises:
        EngineError: The engine broke off.
    """
    if not await _send_in_pieces(exchange, response.first, through):
        return
    write = exchange.write
    if write is None:
        async for part in response.rest():
            if not await _send_in_pieces(exchange, part, through):
                return
    elif isinstance(through, StreamEnd):  # done with any read at once, and never over
        await response.relay(write, through)
    else:
        await _pump(exchange, write, response, through)


async def _pump(exchange: Exchange, write: Sink, response: UpstreamResponse, through: Filter) -> None:
    """Sends what a filter lets through without waking a task, except for what is long or slow."""
    long = b""

    def sink(part: bytes) -> Drain:
        nonlocal long
        if len(part) > PIECE_BYTES or through.slow:
            long = part
            response.stop()
            return None
        data = through.feed(part)
        drain = write(data) if data else None
        if through.over:
            response.stop()
        return drain

    while True:
        await response.pump(sink)
        part, long = long, b""
        if not part or not await _send_in_pieces(exchange, part, through):
            return


async def _send_in_pieces(exchange: Exchange, part: bytes, through: Filter) -> bool:
    """Sends what a filter lets through of a part, in pieces so short that other requests have their turn.

    Returns:
        False if the filter is over.
    """
    for start in range(0, len(part), PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        piece = part[start : start + PIECE_BYTES]
        data = await asyncio.to_thread(through.feed, piece) if through.slow else through.feed(piece)
        for sent in range(0, len(data), PIECE_BYTES):
            if sent:
                await asyncio.sleep(0)
            await exchange.part(data[sent : sent + PIECE_BYTES])
        if through.over:
            return False
    return True


class _ObservedFilter:
    """A filter whose input an observer gets as well."""

    def __init__(self, inner: Filter, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer

    @property
    def over(self) -> bool:
        return self._inner.over

    @property
    def slow(self) -> bool:
        return self._observer.slow

    def feed(self, data: bytes) -> bytes:
        self._observer.feed(data)
        return self._inner.feed(data)
