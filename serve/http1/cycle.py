"""One request and its response on the listener: ASGI's `receive` and `send`."""

import asyncio
import enum
from collections.abc import Callable
from typing import Protocol

from serve.errors import GatewayError
from serve.http1.allowance import Allowance
from serve.http1.asgi import AsgiMessage, Drain, Scope
from serve.http1.message import STATUS_LINES, STATUSES_WITHOUT_BODY, RawHeaders, encode_head, http_date

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
PENDING, STARTED, ENDED, ABANDONED = Progress
NO_BODY, LENGTH, CHUNKED, UNTIL_CLOSED = Framing
_OVER = (ENDED, ABANDONED)


class Wire(Protocol):
    """The connection as a cycle sees it.

    Attributes:
        drain: Pending until the client has taken most of what was written; None while it can take more.
        refused_keys: Requests of this connection that were answered with a 401.
    """

    drain: Drain
    refused_keys: int

    @property
    def write(self) -> Callable[[bytes], None]: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class RequestResponseCycle:
    """Serves one request to an app.

    Args:
        wire: Where the response goes.
        allowance: Counts the body's bytes until the request ends.
        scope: ASGI's description of the request.
        expects_continue: The client waits for a 100 Continue before it sends the body.
        keep_alive: The connection may serve another request after this one.

    Attributes:
        progress: State of the response.
        scope: As it was given.
        keep_alive: As it was given, or False if the response ends the connection.
        error: Why the body was given up; None if it was not.
        received_bytes: Bytes of the body that have arrived and are counted in the allowance.
    """

    __slots__ = (
        "_allowance", "_framing", "_head", "_left_bytes", "_owner", "_parts", "_size_bytes", "_upload", "_waiter",
        "_wire", "error", "keep_alive", "progress", "received_bytes", "scope",
    )  # fmt: skip

    def __init__(
        self, wire: Wire, allowance: Allowance, scope: Scope, expects_continue: bool, keep_alive: bool
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
            if self._upload is ARRIVED or self._size_bytes >= READ_AHEAD_BYTES:
                return self._take()
            await self._wait()
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
            # Ray Serve's health checks have lists for the pairs.
            self._start(message["status"], [*map(tuple, message.get("headers", ()))])
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
        if self.progress is not STARTED:
            return None
        wire = self._wire
        if self._framing is CHUNKED and data and not self._head:  # nearly every token of every stream
            wire.write(_CHUNK % (len(data), data))
        else:
            self._send_part(data, last=False)
        return wire.drain

    def _take(self) -> AsgiMessage:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size_bytes = 0
        more_body = self._upload is not ARRIVED
        if not more_body:
            self._upload = RECEIVED
        self._wire.resume_reading()
        return {"type": "http.request", "body": body, "more_body": more_body}

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
        values = {name.lower(): value for name, value in headers}
        self._framing = self._frame(status, values, headers)
        closes = self._framing is UNTIL_CLOSED or values.get(b"connection", b"").lower() == b"close"
        self._wire.refused_keys += status == 401
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
        if self._head or data:
            self._wire.write(self._head + data if self._head else data)
            self._head = b""
        if last:
            self.progress = ENDED
            self._wake()
