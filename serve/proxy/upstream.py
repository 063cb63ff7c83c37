"""HTTP to a replica: one request, and its response as bytes."""

import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

from serve.config.gateway import LimitsConfig
from serve.errors import DeadlineError, EngineError, PoolUnavailableError
from serve.http1.asgi import Drain, Sink
from serve.http1.client import ClientConnection
from serve.http1.connection_pool import ConnectionPool, ConnectTimeoutError, Origin
from serve.http1.message import encode_head
from serve.http1.sse import LF
from serve.limits.answer_meter import AnswerMeter
from serve.proxy.model_name import ModelName
from serve.proxy.stream_end import NO_OPENING, StreamEnd, chunk_opening
from serve.routing.endpoint import Endpoint

Through = ModelName | AnswerMeter  # what a response passes before anybody reads it

_OK = 200
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
        meter.begin(self.status, self.is_stream)
        self._meter = meter
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
                return b"".join(parts)
            parts.append(part)
            size += len(part)
        raise EngineError(f"The engine sent an answer of more than {limit} bytes.")


def _broke(error: OSError) -> EngineError:
    if isinstance(error, TimeoutError):
        return EngineError("The engine stopped sending.", None, "engine_stalled")
    return EngineError("The connection to the engine broke in the middle of the answer.")


class Upstream:
    """HTTP to all replicas of all pools.

    Args:
        limits: Timeouts, and how long refused clients should wait.
    """

    def __init__(self, limits: LimitsConfig) -> None:
        self._retry_after_s = limits.retry_after_s
        self._max_answer_bytes = limits.max_answer_bytes
        self._connections = ConnectionPool(limits.connect_timeout_s, limits.stream_idle_timeout_s)

    def post(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Sends a request and returns the context of its response, entered once the first bytes have arrived.

        Leaving the context before the response's end closes the connection; vLLM then aborts even a prefill.

        Args:
            endpoint: The replica.
            path: The HTTP path.
            body: The request's body.
            headers: The request's headers, without those that describe connection and body.

        Raises:
            PoolUnavailableError: The replica is not reachable; another one may be.
            DeadlineError: The first byte did not come in time.
            EngineError: The response is compressed, although no request accepts that, or its status neither is 200
                nor that of an error: a redirect or an empty success is no answer.
        """
        origin = Origin.of(endpoint.url)
        return _Post(self, origin, _request_head(origin, path, body, headers), body)

    async def begin(self, origin: Origin, request: bytes, body: bytes) -> tuple[ClientConnection, UpstreamResponse]:
        """Returns a response that has begun and its connection, to be given to `end`; raises what `post` does."""
        try:
            connection, first = await self._first_bytes(origin, request, body)
        except ConnectTimeoutError as error:
            raise self._unavailable() from error
        except TimeoutError as error:
            raise DeadlineError("The engine did not begin to answer in time.") from error
        except OSError as error:
            raise self._unavailable() from error
        if (coding := connection.headers.get("content-encoding", "identity").lower()) != "identity":
            self.end(origin, connection)
            raise EngineError(f"The engine's response has the content-encoding {coding[:100]!r}, unasked.")
        if connection.status != _OK and connection.status < _LOWEST_ERROR:
            self.end(origin, connection)
            raise EngineError(f"The engine's response has the status {connection.status}, which is no answer.")
        return connection, UpstreamResponse(connection, first, self._max_answer_bytes)

    def end(self, origin: Origin, connection: ClientConnection) -> None:
        """Keeps a connection for another request if its response was read to the end, else closes it."""
        self._connections.release(origin, connection)

    async def _first_bytes(self, origin: Origin, request: bytes, body: bytes) -> tuple[ClientConnection, bytes]:
        idle = self._connections.take_idle(origin)
        connection = idle or await self._connections.connect(origin)
        try:
            return connection, await _exchange(connection, request, body)
        except ConnectionError:
            # An engine may close an idle connection just as we use it again. We can't know whether it saw the request,
            # so the caller decides about another attempt, which must not meet another stale connection.
            if idle is not None:
                self._connections.close_idle(origin)
            raise

    async def close(self) -> None:
        """Closes all idle connections."""
        self._connections.close()

    def _unavailable(self) -> PoolUnavailableError:
        return PoolUnavailableError("The engine is not answering; try again shortly.", None, None, self._retry_after_s)


class _Post(AbstractAsyncContextManager[UpstreamResponse]):
    """One request and its response; a generator in its stead would cost every request a microsecond."""

    def __init__(self, upstream: Upstream, origin: Origin, request: bytes, body: bytes) -> None:
        self._upstream = upstream
        self._origin = origin
        self._request = request
        self._body = body
        self._connection: ClientConnection

    async def __aenter__(self) -> UpstreamResponse:
        self._connection, response = await self._upstream.begin(self._origin, self._request, self._body)
        return response

    async def __aexit__(self, *_: object) -> None:
        self._upstream.end(self._origin, self._connection)


async def _exchange(connection: ClientConnection, request: bytes, body: bytes) -> bytes:
    """Sends a request and returns the first bytes of the response's body."""
    try:
        connection.send(request, body)
        await connection.receive_head()
        return await connection.read()
    except BaseException:  # a client that left as well: the engine must not go on working for it
        connection.close()
        raise


def _request_head(origin: Origin, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    fields += ((b"host", origin.authority.encode()), (b"content-length", b"%d" % len(body)))
    return encode_head(f"POST {origin.prefix}{path} HTTP/1.1".encode(), fields)
