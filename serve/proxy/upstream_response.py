"""A replica's response, from the moment its first bytes have arrived."""

import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping

from serve.errors import EngineError
from serve.http1.asgi import Drain, Sink
from serve.http1.client import ClientConnection
from serve.http1.sse import LF
from serve.limits.answer_meter import AnswerMeter
from serve.proxy.model_name import ModelName
from serve.proxy.stream_end import NO_OPENING, StreamEnd, chunk_opening

Through = ModelName | AnswerMeter  # what a response passes before anybody reads it

_LOWEST_ERROR = 400
_LAST_PARTS = 4  # enough for a stream's last chunk and its end, however they are cut


class UpstreamResponse:
    """A replica's response, from the moment its first bytes have arrived.

    Args:
        connection: Where the rest of it arrives.
        first: The first bytes of the body.
        max_whole_bytes: Longest body that anybody may read as a whole.

    Attributes:
        status: HTTP status.
        headers: Response headers.
        is_stream: True if the body is an SSE stream; an error never is.
        first: The first bytes of the body; empty if there is no body, or if no line of it is complete yet.
        last: The last parts of the body so far; empty without `keep_last`.
    """

    def __init__(self, connection: ClientConnection, first: bytes, max_whole_bytes: int = sys.maxsize) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        kind = self.headers.get("content-type", "")
        self.is_stream = self.status < _LOWEST_ERROR and kind.lower().startswith("text/event-stream")
        self.first = first
        self.last: deque[bytes] = deque(maxlen=0)
        self._connection = connection
        self._max_whole_bytes = max_whole_bytes
        self._through: tuple[Through, ...] = ()
        self._meter: AnswerMeter | None = None
        self._stopped = False

    def pass_through(self, through: Through) -> None:
        """Has all that is read of the response pass something; called before anything is read."""
        self._through += (through,)
        self.first = through.feed(self.first)

    def meter(self, meter: AnswerMeter) -> None:
        """Has the response's usage measured; called as `pass_through`."""
        meter.status = self.status
        self._meter = meter
        if self.is_stream:
            self._through += (meter,)
            self.first = meter.feed(self.first)

    def keep_last(self) -> None:
        """Keeps the last parts of the body in `last`."""
        self.last = deque((self.first,), maxlen=_LAST_PARTS)

    async def rest(self) -> AsyncIterator[bytes]:
        """Yields what follows `first`, as it arrives; several frames at once if the reader is slower than the engine.

        Raises:
            EngineError: The connection broke before the body was complete.
        """
        while part := await self._next():
            yield part

    async def _next(self) -> bytes:
        """Returns the next part of the body; empty at its end."""
        while True:
            try:
                data = await self._connection.read()
            except OSError as error:
                raise _broke(error) from error
            part = self._passed(data) if data else self._left()
            if part or not data:
                return part

    async def pump(self, sink: Sink) -> None:
        """Does what `rest` does without waking a task for every part: the event loop calls `sink`.

        Args:
            sink: Gets a part; gets no more until the drain that it returns is done.

        Raises:
            EngineError: The connection broke before the body was complete.
        """
        plain = not self._through and not self.last.maxlen
        await self._pump(sink if plain else self._skimming(sink, sink), sink)

    async def relay(self, write: Sink, end: StreamEnd) -> None:
        """Pumps the rest of the body through `end` to `write`.

        Raises:
            EngineError: As of `pump`.
        """

        def sink(part: bytes) -> Drain:
            return write(data) if (data := end.feed(part)) else None

        await self._pump(self._skimming(sink, write, end), sink)

    async def _pump(self, take: Sink, sink: Sink) -> None:
        """Passes what arrives to `take`, and to `sink` what is held back at the end."""
        self._stopped = False
        try:
            await self._connection.pump(take)
        except OSError as error:
            raise _broke(error) from error
        if not self._stopped and (rest := self._left()) and (drain := sink(rest)) is not None:
            await drain

    def _skimming(self, sink: Sink, direct: Sink, end: StreamEnd | None = None) -> Sink:
        """Returns what takes the parts of the body as they arrive.

        A chunk that begins as the one before says nothing of the stream's end, nor of usage: nobody searches it.

        Args:
            sink: Gets what has passed everything that it must.
            direct: Gets such chunks.
            end: Is told of all other parts by `sink`; after an error nothing may pass it by.
        """
        meter = self._meter
        skims = all(through is meter for through in self._through) and not self.last.maxlen
        usual: bytes | tuple[bytes, ...] = NO_OPENING

        def take(data: bytes) -> Drain:
            nonlocal usual
            if data.startswith(usual) and data.find(LF) == len(data) - 2 and data[-1] == LF:
                if meter is not None:
                    meter.frames += 1
                return direct(data)
            part = self._passed(data)
            drain = sink(part) if part else None
            is_whole = skims and part is data and (end is None or not end.failed)
            usual = chunk_opening(data) if is_whole else NO_OPENING
            return drain

        return take

    def _passed(self, data: bytes) -> bytes:
        """Returns what is there to read of a part of the body."""
        self.last.append(data)
        for through in self._through:
            data = through.feed(data)
        return data

    def _left(self) -> bytes:
        """Returns what is left to read when the body is over."""
        rest = b""
        for through in self._through:
            rest = (through.feed(rest) if rest else b"") + through.finish()
        return rest

    def stop(self) -> None:
        """Ends `pump`. Call it again for what follows; an engine whose response is left is told."""
        self._stopped = True
        self._connection.stop()

    async def body(self, limit_bytes: int = sys.maxsize) -> bytes:
        """Returns the whole body.

        Args:
            limit_bytes: The caller's own limit; the lower of it and `max_whole_bytes` counts.

        Raises:
            EngineError: The connection broke before the body was complete, or the body is too long.
        """
        limit = min(limit_bytes, self._max_whole_bytes)
        parts = [self.first]
        size = len(self.first)
        while size <= limit:
            part = await self._next()
            if not part:
                whole = b"".join(parts)
                if self._meter is not None and not self.is_stream:
                    self._meter.read(whole)
                return whole
            parts.append(part)
            size += len(part)
        raise EngineError(f"The engine sent an answer of more than {limit} bytes.")


def _broke(error: OSError) -> EngineError:
    if isinstance(error, TimeoutError):
        return EngineError("The engine stopped sending.", None, "engine_stalled")
    return EngineError("The connection to the engine broke in the middle of the answer.")
