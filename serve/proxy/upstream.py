"""HTTP to a replica: a request, and its response from the moment its first bytes have arrived."""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from serve.config.gateway import LimitsConfig
from serve.errors import DeadlineError, EngineError, PoolUnavailableError, TooManyConnectionsError
from serve.http1.asgi import Sink
from serve.http1.client import OWN_FAULTS, ClientConnection, ConnectionPool, ConnectTimeoutError, Origin
from serve.routing.pool import Endpoint

_OK = 200
_LOWEST_ERROR = 400
_UNAUTHORIZED = 401
_HIGHEST_ERROR = 599


class UpstreamResponse(AbstractAsyncContextManager["UpstreamResponse"]):
    """A replica's response, from the moment its first bytes have arrived. Nobody may read more than `max_whole_bytes`
    of it as a whole. `release` gets the connection when the response, a context, is left.

    Attributes:
        is_stream: True if the body is an SSE stream; an error never is.
        first: The first bytes of the body; empty if there is no body.
        left: Nobody reads it any more; the connection may be another response's.
        broken: The rest did not come.
        on_break: Called when that is seen.
        on_leave: Called with the response when it is left.
    """

    def __init__(
        self,
        connection: ClientConnection,
        first: bytes,
        max_whole_bytes: int = sys.maxsize,
        release: Callable[[ClientConnection], object] = lambda _: None,
    ) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        kind = self.headers.get("content-type", "")
        self.is_stream = self.status < _LOWEST_ERROR and kind.lower().startswith("text/event-stream")
        self.first = first
        self.left = False
        self.broken = False
        self.on_break: Callable[[], None] | None = None
        self.on_leave: Callable[[UpstreamResponse], object] | None = None
        self._connection = connection
        self._max_whole_bytes = max_whole_bytes
        self._is_refused = False
        self._release = release

    async def __aexit__(self, *_: object) -> None:
        """Keeps the connection for another request if the response was read to its end, else closes it."""
        self.left = True
        if self.on_leave is not None:
            self.on_leave(self)
            self.on_leave = None
        self._release(self._connection)

    def refuse(self, status: int, body: bytes) -> None:
        """Makes it the refusal with which its body begins, as if the engine had sent that with its status."""
        self.status, self.is_stream = status, False
        self.headers = {**self.headers, "content-type": "application/json"}
        self.first, self._is_refused = body, True

    async def rest(self) -> AsyncIterator[bytes]:
        """Yields what follows `first`, as it arrives; several frames at once if the reader is slower than the engine.

        Raises:
            EngineError: The connection broke before the body was complete.
        """
        try:
            while part := await self._connection.read():
                yield part
        except OSError as error:
            raise self._broke(error) from error

    async def pump(self, sink: Sink) -> None:
        """Does what `rest` does without waking a task for every part: the event loop calls `sink`.

        It gets no more until the drain that it returns is done.

        Raises:
            EngineError: The connection broke before the body was complete.
        """
        try:
            await self._connection.pump(sink)
        except OSError as error:
            raise self._broke(error) from error

    def stop(self) -> None:
        """Ends `pump`. Call it again for what follows; an engine whose response is left sees the connection close."""
        self._connection.stop()

    @property
    def silence_s(self) -> float:
        """Seconds for which its engine has sent nothing; 0 while something waits for its reader."""
        return 0.0 if self.left else self._connection.silence_s

    def give_up(self) -> None:
        """Ends it, as if its engine had stopped sending for as long as any may."""
        if not self.left:
            self._connection.give_up()

    async def body(self, max_bytes: int = sys.maxsize) -> bytes:
        """Returns the whole body. The lower of `max_bytes` and `max_whole_bytes` counts.

        Raises:
            EngineError: The connection broke before the body was complete, or the body is too long.
        """
        most = min(max_bytes, self._max_whole_bytes)
        parts = [self.first]
        size = len(self.first)
        try:
            while size <= most:
                part = b"" if self._is_refused else await self._connection.read()
                if not part:
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                parts.append(part)
                size += len(part)
        except OSError as error:
            raise self._broke(error) from error
        raise EngineError(f"The engine sent an answer of more than {most} bytes.")

    def _broke(self, error: OSError) -> EngineError:
        self.broken = True
        if self.on_break is not None:
            self.on_break()
        if isinstance(error, TimeoutError):
            return EngineError("The engine stopped sending.", code="engine_stalled")
        return EngineError("The connection to the engine broke in the middle of the answer.")


class Upstream:
    """HTTP to all replicas of all pools."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.retry_after_s = limits.retry_after_s
        self.max_answer_bytes = limits.max_answer_bytes
        self.connections = ConnectionPool(limits.connect_timeout_s, limits.stream_idle_timeout_s)

    async def post(
        self, endpoint: Endpoint, path: str, body: Sequence[bytes | memoryview], headers: Mapping[str, str]
    ) -> UpstreamResponse:
        """Sends a request and returns its response once the first bytes have arrived. The body may be in parts.

        Leaving the response, a context, before its end closes the connection; vLLM then aborts even a prefill.
        `headers` are without those that describe connection and body.

        Raises:
            PoolUnavailableError: The replica is not reachable, or refuses our key; another one may not.
            TooManyConnectionsError: The gateway has no files left for a connection, which is no replica's fault.
            DeadlineError: The first byte did not come in time.
            EngineError: The response is compressed, although no request accepts that, or its status neither is 200
                nor that of an error: a redirect or an empty success is no answer.
        """
        origin, connections = Origin.of(endpoint.url), self.connections
        head = origin.request_head("POST", path, headers.items(), sum(map(len, body)))
        idle = connections.take_idle(origin)
        try:
            connection = idle or await connections.connect(origin)
            try:
                connection.send(head, *body)
                first = await connection.read()
            except BaseException:  # a client that left as well: the engine must not go on working for it
                connection.close()
                raise
        except ConnectTimeoutError as error:
            raise self._unavailable() from error
        except TimeoutError as error:
            raise DeadlineError("The engine did not begin to answer in time.") from error
        except OSError as error:
            if error.errno in OWN_FAULTS:
                message = "The gateway can open no connection to an engine now; try again shortly."
                raise TooManyConnectionsError(message, retry_after_s=self.retry_after_s) from error
            # An engine may close an idle connection just as we use it again. We can't know whether it saw the request,
            # so the caller decides about another attempt, which must not get another stale connection.
            if idle is not None and isinstance(error, ConnectionError):
                connections.close_idle(origin)
            raise self._unavailable() from error
        release = partial(connections.release, origin)
        response = UpstreamResponse(connection, first, self.max_answer_bytes, release)
        if (coding := response.headers.get("content-encoding", "identity").lower()) != "identity":
            await response.__aexit__()
            raise EngineError(f"The engine's response has the content-encoding {coding[:100]!r}, unasked.")
        if response.status == _UNAUTHORIZED:  # never the client's key, which no engine gets
            await response.__aexit__()
            raise self._unavailable("The engine refused the gateway's own key.")
        if response.status != _OK and not _LOWEST_ERROR <= response.status <= _HIGHEST_ERROR:
            await response.__aexit__()
            raise EngineError(f"The engine's response has the status {response.status}, which is no answer.")
        return response

    async def close(self) -> None:
        """Closes all idle connections."""
        self.connections.close()

    def _unavailable(self, message: str = "The engine is not answering; try again shortly.") -> PoolUnavailableError:
        return PoolUnavailableError(message, retry_after_s=self.retry_after_s)
