"""An HTTP/1.1 listener from the socket to ASGI with nothing in between (docs/adr/0016).

uvicorn accepts, lists and drains the connections; this is the protocol that it speaks on each, and one request and its
response after the other: ASGI's `receive` and `send`.
"""

import asyncio
import enum
import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import uvicorn.config

from serve.errors import (
    GatewayError,
    OverloadedError,
    RequestTimeoutError,
    ShuttingDownError,
    TooManyConnectionsError,
)
from serve.http1.allowance import Allowance
from serve.http1.asgi import DIRECT, AsgiApp, AsgiMessage, Drain, Scope
from serve.http1.message import STATUS_LINES, STATUSES_WITHOUT_BODY, RawHeaders, encode_head, error_response, http_date
from serve.http1.request_parser import BETWEEN, BODY, HEAD, RequestParser, addresses
from serve.http1.turns import turns
from serve.telemetry.request_log import log_error

log = logging.getLogger("ray.serve.specgate.http1")

_DEADLINE_CHECK_S = 5.0  # one timer for a connection is cheaper than one for every request
_KEEP_ALIVE_S = 75.0  # longer than the proxies before us: they should be the ones to close an idle connection
_HEAD_TIMEOUT_S = 30.0  # from its first byte
_BODY_GRACE_S = 10.0  # before a body must keep to `_BODY_BYTES_PER_S`
_BODY_BYTES_PER_S = 1024
_BODY_TIMEOUT_S = 300.0  # for all of it, however fast it is
_MAX_PIPELINED = 64  # requests that wait for the one before them; in one read there may be thousands
_WRITE_TIMEOUT_S = 300.0  # for a client to take what was written
_CROWDED_WRITE_TIMEOUT_S = 10.0  # the same for much of it, while too much waits for all clients
_LINGER_S = 2.0  # closing while a rejected client still sends would make it lose our response
_CHUNK, _LAST_CHUNK = b"%x\r\n%b\r\n", b"0\r\n\r\n"  # an empty one ends the message
READ_AHEAD_BYTES = 256 * 1024  # of a body; its client waits while so much waits for the app
_MAX_REFUSED_KEYS = 20  # of one connection: who guesses must connect again and again
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Upload(enum.Enum):
    """States of the request's body."""

    AWAITED = enum.auto()  # the client sends it after a 100 Continue
    ARRIVING = enum.auto()
    ARRIVED = enum.auto()  # all of it is here; the app has not received the end
    RECEIVED = enum.auto()  # the app has received all of it


class Progress(enum.Enum):
    """States of the response."""

    PENDING = enum.auto()  # the app has not begun it
    STARTED = enum.auto()
    IN_CHUNKS = enum.auto()  # its head is out; each further part is a chunk
    ENDED = enum.auto()
    ABANDONED = enum.auto()  # the client is gone


class Framing(enum.Enum):
    """Marks of the end of the response's body."""

    NO_BODY = enum.auto()
    LENGTH = enum.auto()  # content-length
    CHUNKED = enum.auto()
    UNTIL_CLOSED = enum.auto()


# Bound once: in Python 3.11 `Progress.STARTED` costs 0.1 us more than a global, and every token passes here.
AWAITED, ARRIVING, ARRIVED, RECEIVED = Upload
PENDING, STARTED, IN_CHUNKS, ENDED, ABANDONED = Progress
NO_BODY, LENGTH, CHUNKED, UNTIL_CLOSED = Framing
_OVER = (ENDED, ABANDONED)


class RequestResponseCycle:
    """Serves one request to an app. The allowance counts the body's bytes until the request ends; with
    `expects_continue`, the client waits for a 100 Continue before it sends the body.

    Attributes:
        keep_alive: The connection may serve another request after this one; False if the response ends it.
        error: Why the body was given up; None if it was not.
        received_bytes: Bytes of the body that have arrived and are counted in the allowance.
    """

    __slots__ = (
        "_allowance", "_framing", "_head", "_left_bytes", "_owner", "_parts", "_size_bytes", "_upload", "_waiter",
        "_wire", "error", "keep_alive", "progress", "received_bytes", "scope",
    )  # fmt: skip

    def __init__(
        self, wire: "ServerProtocol", allowance: Allowance, scope: Scope, expects_continue: bool, keep_alive: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.progress = PENDING
        self.received_bytes = 0
        self.error: GatewayError | None = None
        self._wire = wire
        self._allowance = allowance
        self._owner = ""
        self._upload = AWAITED if expects_continue else ARRIVING
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._framing = UNTIL_CLOSED
        self._head = b""
        self._left_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    # For the connection.

    def feed(self, data: bytes) -> None:
        """Takes a part of the request's body."""
        if self.error is not None or self.progress in _OVER:
            return
        if error := self._allowance.take(len(data), self._owner):
            self.fail(error)
            return
        self.received_bytes += len(data)
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes >= READ_AHEAD_BYTES:
            self._wire.pause_reading()
            self._wake()

    def finish(self) -> None:
        """Takes the end of the request."""
        self._upload = ARRIVED
        self._wake()

    def fail(self, error: GatewayError) -> None:
        """Gives up the body; the app learns why, and responds, or else the connection responds with that error."""
        if self.error is not None or self._upload in (ARRIVED, RECEIVED):
            return
        self.error = error
        self._parts.clear()
        self._size_bytes = 0
        self._wire.resume_reading()
        self._wake()

    def abandon(self) -> None:
        """Lets the app know that the client is gone."""
        self.progress = ABANDONED
        self._parts.clear()
        self.release()
        self._wake()

    def release(self) -> None:
        """Gives the body's bytes back to the allowance."""
        self._allowance.give_back(self.received_bytes, self._owner)
        self.received_bytes = 0

    # For the app.

    def belong_to(self, owner: str) -> None:
        """Counts the body as an owner's, from its first byte on.

        Raises:
            OverloadedError: The owner's bodies hold too much already.
        """
        if error := self._allowance.assign(self.received_bytes, owner):
            raise error
        self._owner = owner

    async def receive(self) -> AsgiMessage:
        """ASGI's `receive`: returns what has arrived of the body; after its end, waits until the client leaves.

        A body that was given up ends in `http.disconnect` too, with the cause under a key of our own, `error`.
        """
        if self._upload is AWAITED:
            self._upload = ARRIVING
            if not self._parts and self.progress is PENDING:
                self._wire.write(_CONTINUE)
        while self.error is None and self.progress not in _OVER:
            # In large parts only: an app can do nothing with half of a JSON document.
            if self._upload is not ARRIVED and self._size_bytes < READ_AHEAD_BYTES:
                await self._wait()
                continue
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._size_bytes = 0
            more_body = self._upload is not ARRIVED
            if not more_body:
                self._upload = RECEIVED
            self._wire.resume_reading()
            return {"type": "http.request", "body": body, "more_body": more_body}
        return {"type": "http.disconnect", "error": self.error} if self.error else {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
        """ASGI's `send`; does nothing after the client has left.

        Raises:
            ValueError: The body is longer or shorter than its content-length, or has no head before it, or a header
                holds a line break; then the response has not begun.
        """
        if self.progress in _OVER:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], [*message.get("headers", ())])  # of Ray Serve's health checks, lists
            return
        if self.progress is PENDING:
            raise ValueError("a response's body without a head")
        self._send_part(message.get("body", b""), last=not message.get("more_body", False))
        if self._wire.drain is not None:
            await self._wire.drain

    def write(self, data: bytes) -> Drain:
        """Sends a part of the body that is not the last; the response has been started by `send`.

        Raises:
            ValueError: The body is longer than its content-length.
        """
        wire = self._wire
        if self.progress is IN_CHUNKS and data:  # nearly every token of every stream
            wire.write(_CHUNK % (len(data), data))
            return wire.drain
        if self.progress is not STARTED:
            return None
        self._send_part(data, last=False)
        return wire.drain

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _start(self, status: int, headers: RawHeaders) -> None:
        values = dict(headers)  # whose names are in lower case, by ASGI
        self._framing = self._frame(status, values, headers)
        closes = self._framing is UNTIL_CLOSED or values.get(b"connection", b"").lower() == b"close"
        if status == 401:
            self._wire.refused_keys += 1
            closes = closes or self._wire.refused_keys >= _MAX_REFUSED_KEYS
        if closes or self._upload in (AWAITED, ARRIVING):  # the rest of the request will not be read
            self.keep_alive = False
        if not self.keep_alive and b"connection" not in values:
            headers.append((b"connection", b"close"))
        if b"date" not in values:
            headers.append((b"date", http_date()))
        self._head = encode_head(STATUS_LINES.get(status, b"HTTP/1.1 %d " % status), headers)
        self.progress = STARTED

    def _frame(self, status: int, values: dict[bytes, bytes], headers: RawHeaders) -> Framing:
        length = values.get(b"content-length")
        if length is not None:
            self._left_bytes = int(length)
        if self.scope["method"] == "HEAD" or status in STATUSES_WITHOUT_BODY:
            return NO_BODY
        if length is not None:
            return LENGTH
        if self.scope["http_version"] == "1.1":
            headers.append((b"transfer-encoding", b"chunked"))
            return CHUNKED
        return UNTIL_CLOSED

    def _send_part(self, data: bytes, *, last: bool) -> None:
        if self._framing is CHUNKED:
            data = (_CHUNK % (len(data), data) if data else b"") + (_LAST_CHUNK if last else b"")
        elif self._framing is LENGTH:
            self._left_bytes -= len(data)
            if self._left_bytes < 0 or (last and self._left_bytes):
                raise ValueError("the response's body is not as long as its content-length says")
        elif self._framing is NO_BODY:
            data = b""
        if self._head:
            if len(data) > READ_AHEAD_BYTES:  # joined, a whole answer would be there twice until its client has it
                self._wire.write(self._head)
                self._wire.write(data)
            else:
                self._wire.write(self._head + data)
            self._head = b""
            if self._framing is CHUNKED:
                self.progress = IN_CHUNKS
        elif data:
            self._wire.write(data)
        if last:
            self.progress = ENDED
            self._wake()


class Lifetime(enum.Enum):
    """States of a connection."""

    OPEN = enum.auto()  # one request is served after the other
    ENDING = enum.auto()  # closes after the response that is under way
    CLOSED = enum.auto()  # nothing more is read, and no request is served


# Bound once: in Python 3.11 `Lifetime.OPEN` costs 0.1 us more than a global.
_OPEN, _ENDING, _CLOSED = Lifetime


@dataclass(frozen=True, slots=True)
class Apps:
    """The ASGI apps behind a listener.

    Attributes:
        direct: By path, for POST requests. A call is cancelled when its client leaves.
        fallback: For all other requests. It learns in ASGI's way that a client has left.
    """

    direct: Mapping[str, AsgiApp]
    fallback: AsgiApp


class ServerProtocol(asyncio.Protocol):
    """One connection of a client. Responses go out in the order in which the requests came in.

    A client that closes its sending half is treated as gone, because from here the two look the same. `connections`
    holds this one while it is open, and `tasks` the task of every call to an app while it runs.

    Attributes:
        drain: Pending until the client has taken most of what was written; None while it can take more.
        refused_keys: Requests of this connection that were answered with a 401.
    """

    def __init__(self, apps: Apps, connections: set[Any], tasks: set[asyncio.Task[None]], allowance: Allowance) -> None:
        self.drain: Drain = None
        self.refused_keys = 0
        self._apps = apps
        self._connections = connections
        self._tasks = tasks
        self._allowance = allowance
        self._loop = asyncio.get_running_loop()
        self._transport = asyncio.Transport()  # connection_made brings the real one
        self.write: Callable[[bytes], None] = self._transport.write
        self._addresses: dict[str, Any] = {}
        self._lifetime = _OPEN
        self._reading_paused = False
        self._waiting_since = self._loop.time()  # for what the client is to send next
        self._in_head = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0  # when the client took no more, until it has

        self._parser = RequestParser(self._begin)
        self._cycles: deque[RequestResponseCycle] = deque()  # the first is being served, the others wait
        self._task: asyncio.Task[None] | None = None

    # For uvicorn and the cycles.

    def shutdown(self) -> None:
        """Closes the connection after the response that is under way."""
        if self._lifetime is _OPEN:
            self._lifetime = _ENDING
        if not self._cycles:
            self._transport.close()

    def pause_reading(self) -> None:
        """Makes the client wait before it sends more."""
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Lets the client send more, unless requests of it wait already."""
        if self._reading_paused and len(self._cycles) <= 1:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write  # itself: a method that calls it would cost every token
        if len(self._connections) >= self._allowance.max_connections:
            self._refuse_connection()
            return
        self._deadline_timer = self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadline)
        self._connections.add(self)
        self._addresses = addresses(transport)

    def data_received(self, data: bytes) -> None:
        if self._lifetime is _CLOSED or self._parser.rejection is not None:
            return
        self._parser.feed(data)
        if self._parser.parsing is not HEAD:
            self._in_head = False
        elif not self._in_head:
            self._in_head = True
            self._waiting_since = self._loop.time()
        if self._parser.rejection is not None and not self._cycles:
            self._close_with(self._parser.rejection)
        elif len(self._cycles) > 1:
            self.pause_reading()

    def eof_received(self) -> None:
        """Leaves at once, and returns nothing, which closes the connection behind the responses that are whole.

        Closing alone would let the app go on until a client has taken what waits for it, who may never do so.
        """
        self._lifetime = _CLOSED
        if not self._cycles:
            return
        if self._cycles[0].progress is PENDING:
            self._let_go()
        elif self._cycles[0].progress not in _OVER:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.drain = self._loop.create_future()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._allowance.unsent_bytes += self._unsent_bytes
        crowded = self._unsent_bytes > READ_AHEAD_BYTES and self._allowance.has_much_unsent
        timeout_s = _CROWDED_WRITE_TIMEOUT_S if crowded else _WRITE_TIMEOUT_S
        self._write_timer = self._loop.call_later(timeout_s, self._transport.abort)

    def resume_writing(self) -> None:
        if self.drain is not None and not self.drain.done():
            self.drain.set_result(None)
        self.drain = None
        self._allowance.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lifetime = _CLOSED
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._connections.discard(self)
        self._let_go()

    def _let_go(self) -> None:
        if self._task is None or not self._cycles or self._direct_app(self._cycles[0]) is None:
            self._leave()
        elif self._cycles[0].progress is not ABANDONED:  # or it knows already: a second cancel would break its end off
            self._cycles[0].progress = ABANDONED
            turns().call(self._leave)  # hundreds of clients may leave at the same moment

    def _leave(self) -> None:
        """Lets the apps know that the client is gone."""
        for cycle in self._cycles:
            cycle.abandon()
        if self._task is not None and self._cycles and self._direct_app(self._cycles[0]) is not None:
            self._task.cancel()
        self.resume_writing()

    def _refuse_connection(self) -> None:
        message = f"This replica already has {self._allowance.max_connections} connections; try again shortly."
        self._lifetime = _CLOSED
        self._transport.write(
            error_response(TooManyConnectionsError(message, retry_after_s=self._allowance.retry_after_s))
        )
        self._transport.close()

    def _check_deadline(self) -> None:
        self._deadline_timer = self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadline)
        if self._lifetime is _CLOSED:
            return
        if self._reading_paused:  # the client waits for us, and its end behind what is unread is no event
            if self._has_left():
                self.eof_received()
                self._transport.close()
            return
        waited_s = self._loop.time() - self._waiting_since
        if self._parser.parsing is BODY and len(self._cycles) == 1:
            self._check_body(self._cycles[0], waited_s)
        elif not self._cycles and self._in_head and waited_s > _HEAD_TIMEOUT_S:
            self._close_with(RequestTimeoutError(f"The request's head was not complete after {_HEAD_TIMEOUT_S:g} s."))
        elif not self._cycles and waited_s > _KEEP_ALIVE_S:
            self._transport.close()

    def _has_left(self) -> bool:
        """Returns whether the client has closed the connection, or its sending half; the socket itself is asked."""
        ends = select.poll()
        ends.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(ends.poll(0))

    def _check_body(self, cycle: RequestResponseCycle, waited_s: float) -> None:
        if waited_s > _BODY_TIMEOUT_S:
            cycle.fail(RequestTimeoutError(f"The request's body was not complete after {_BODY_TIMEOUT_S:g} s."))
        elif cycle.received_bytes < (waited_s - _BODY_GRACE_S) * _BODY_BYTES_PER_S:
            message = f"The request's body arrives at less than {_BODY_BYTES_PER_S} bytes per second."
            cycle.fail(RequestTimeoutError(message))

    # Called by the parser.

    def _begin(self, scope: Scope, expects_continue: bool, keep_alive: bool) -> RequestResponseCycle | GatewayError:
        if self._allowance.draining:
            message = "This gateway is shutting down; send the request again."
            return ShuttingDownError(message, retry_after_s=self._allowance.retry_after_s)
        if len(self._cycles) > _MAX_PIPELINED:
            message = (
                f"More than {_MAX_PIPELINED} requests wait on this connection; read responses before you send more."
            )
            return OverloadedError(message, retry_after_s=self._allowance.retry_after_s)
        scope.update(self._addresses)
        cycle = RequestResponseCycle(self, self._allowance, scope, expects_continue, keep_alive)
        scope["extensions"] = {DIRECT: cycle}
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            self._serve_next()
        return cycle

    # One cycle after the other.

    def _direct_app(self, cycle: RequestResponseCycle) -> AsgiApp | None:
        return self._apps.direct.get(cycle.scope["path"]) if cycle.scope["method"] == "POST" else None

    def _serve_next(self) -> None:
        cycle = self._cycles[0]
        self._waiting_since = self._loop.time()
        app = self._direct_app(cycle) or self._apps.fallback
        self._task = self._loop.create_task(app(cycle.scope, cycle.receive, cycle.send))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._served)
        self.resume_reading()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task = None
        cycle = self._cycles.popleft()
        cycle.release()
        cycle.scope.pop("extensions", None)  # hold the cycle: without them, nothing is left for the collector
        if not task.cancelled() and (error := task.exception()) is not None:
            log_error(log, f"{cycle.scope['method']} {cycle.scope['path']} failed", error)
        if self._lifetime is _CLOSED:
            return
        if cycle.progress is PENDING:
            self._close_with(cycle.error or GatewayError("Internal error; see the server's log."))
        elif cycle.progress is not ENDED:
            self._transport.abort()  # so that the client cannot take the response for a whole one
        elif self._lifetime is _ENDING or not cycle.keep_alive:
            self._close()
        elif self._cycles:
            self._serve_next()
        elif self._parser.rejection is not None:
            self._close_with(self._parser.rejection)
        else:
            self._waiting_since = self._loop.time()
            self.resume_reading()

    def _close_with(self, error: GatewayError) -> None:
        self._transport.write(error_response(error))
        self._close()

    def _close(self) -> None:
        self._resume_reading()
        self._lifetime = _CLOSED
        if self._parser.parsing in (BETWEEN, HEAD):
            self._transport.close()
            return
        if self._transport.can_write_eof():
            with suppress(OSError):  # its client has broken it off, of which the event loop has yet to hear
                self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.close)


def protocol_factory(
    direct: Mapping[str, AsgiApp], allowance: Allowance | None = None
) -> Callable[..., ServerProtocol]:
    """Returns uvicorn's `http`: the protocol for uvicorn's own app, with some paths served before it (`Apps.direct`).
    Their apps live in the event loop that makes this call; where uvicorn runs in another one, its own app gets these
    requests too. All connections share the allowance.
    """
    shared = allowance or Allowance()
    home = asyncio.get_running_loop()

    def create(
        config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> ServerProtocol:
        here = direct if asyncio.get_running_loop() is home else {}
        apps = Apps(here, config.loaded_app)
        return ServerProtocol(apps, server_state.connections, server_state.tasks, shared)

    return create


def serve_directly(direct: Mapping[str, AsgiApp], allowance: Allowance | None = None) -> None:
    """Makes every uvicorn server that this process starts from now on serve some paths before its own app.

    For a Ray Serve replica, which starts its own server and cannot be given a protocol for it.
    """
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol_factory(direct, allowance)  # type: ignore[assignment]
