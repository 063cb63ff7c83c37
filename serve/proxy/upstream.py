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
from serve.limits.answer_meter import AnswerMeter
from serve.proxy.model_name import ModelName
from serve.routing.endpoint import Endpoint

Through = ModelName | AnswerMeter  # what a response passes before anybody reads it

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
        first: The first bytes of the body; empty if there is no body, or if no line of it is complete yet.
        last: The last parts of the body so far; empty without `keep_last`.
    """

    def __init__(self, connection: ClientConnection, first: bytes, max_whole_bytes: int = sys.maxsize) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self.first = first
        self.last: deque[bytes] = deque(maxlen=0)
        self._connection = connection
        self._max_whole_bytes = max_whole_bytes
        self._through: tuple[Through, ...] = ()
        self._stopped = False

    def pass_through(self, through: Through) -> None:
        """Has all that is read of the response pass something; called before anything is read."""
        self._through += (through,)
        self.first = through.feed(self.first)

    def meter(self, meter: AnswerMeter) -> None:
        """Has the response's usage measured; called as `pass_through`."""
        meter.begin(self.status, self.is_stream)
        self.pass_through(meter)

    def keep_last(self) -> None:
        """Keeps the last parts of the body in `last`."""
        self.last = deque((self.first,), maxlen=_LAST_PARTS)

    @property
    def is_stream(self) -> bool:
        """True if the body is an SSE stream."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

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
        self._stopped = False
        plain = not self._through and not self.last.maxlen
        try:
            await self._connection.pump(sink if plain else self._passing(sink))
        except OSError as error:
            raise _broke(error) from error
        if not self._stopped and (rest := self._left()) and (drain := sink(rest)) is not None:
            await drain

    def _passing(self, sink: Sink) -> Sink:
        (only, *others) = self._through or (None,)
        if isinstance(only, AnswerMeter) and not others and not self.last.maxlen:
            return only.passing(sink)

        def take(data: bytes) -> Drain:
            part = self._passed(data)
            return sink(part) if part else None

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

        Leaving the context closes the connection unless the response was read to its end; vLLM then aborts the
        request, in prefill as well as in the middle of the response.

        Args:
            endpoint: The replica.
            path: The HTTP path.
            body: The request's body.
            headers: The request's headers, without those that describe connection and body.

        Raises:
            PoolUnavailableError: The replica is not reachable; another one may be.
            DeadlineError: The first byte did not come in time.
            EngineError: The response is compressed, although no request accepts that.
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
