"""One request and its response on our own listener: ASGI's `receive` and `send`."""

import asyncio
from collections.abc import MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Any, Protocol

from serve.errors import GatewayError, encode_json
from serve.http1.wire import LAST_CHUNK, READ_AHEAD_BYTES, encode_chunk, encode_head

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_WITHOUT_BODY = frozenset({204, 304})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Wire(Protocol):
    """The connection as a call sees it.

    Attributes:
        room: Done when the client has taken most of what was written; None while there is room.
    """

    room: "asyncio.Future[None] | None"

    def write(self, data: bytes) -> None: ...

    def read_on(self, wanted: bool) -> None:
        """Whether more of the request may come in."""
        ...


class Call:
    """What the listener knows of one request.

    Args:
        wire: Where the response goes.
        scope: ASGI's description of the request.
        expects_continue: The client waits for a word before it sends the body.
        keep_alive: The connection may serve another request after this one.

    Attributes:
        complete: All of the request has arrived.
        gone: Client and response have parted: nothing is received or sent any more.
        ended: The response is complete.
        status: Of the response; 0 while none has begun.
    """

    __slots__ = (
        "_chunked", "_expects_continue", "_given", "_head", "_left", "_parts", "_silent", "_size", "_waiter", "_wire",
        "complete", "ended", "gone", "keep_alive", "scope", "status",
    )  # fmt: skip

    def __init__(self, wire: Wire, scope: MutableMapping[str, Any], expects_continue: bool, keep_alive: bool) -> None:
        self.scope, self._wire, self.keep_alive = scope, wire, keep_alive
        self._expects_continue = expects_continue
        self.complete = self.gone = self.ended = self._given = self._chunked = self._silent = False
        self.status = 0
        self._head = b""
        self._left: int | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """A piece of the request's body has arrived."""
        if self.gone or self.ended:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size >= READ_AHEAD_BYTES:
            self._wire.read_on(False)
            self._wake()

    def finish(self) -> None:
        """The request is complete."""
        self.complete = True
        self._wake()

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self._parts, self._size = [], 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI: the body, as much of it as is here; then, once the client has left, that it has."""
        if self._expects_continue and not (self._parts or self.complete or self.status):
            self._expects_continue = False
            self._wire.write(_CONTINUE)
        while not (self.gone or self.ended or (self._ready() and not self._given)):
            await self._news()
        if self.gone or self.ended:
            return {"type": "http.disconnect"}
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size, self._given = [], 0, self.complete
        self._wire.read_on(True)
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    def _ready(self) -> bool:
        # In large pieces: nobody can do anything with a part of a JSON document.
        return self.complete or self._size >= READ_AHEAD_BYTES

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI: the response. What is sent after the client has left goes nowhere."""
        if self.gone or self.ended:
            return
        if message["type"] == "http.response.start":
            # ASGI's headers are iterables of two: Ray Serve's own answers have lists.
            self._start(message["status"], [(name, value) for name, value in message.get("headers", ())])
            return
        self._body(message.get("body", b""), last=not message.get("more_body", False))
        if self._wire.room is not None:
            await self._wire.room

    def write(self, data: bytes) -> "asyncio.Future[None] | None":
        """Send a part that is not the last at once; returns what to wait for before more is written, if anything."""
        if self.gone or self.ended:
            return None
        self._body(data, last=False)
        return self._wire.room

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        names = {name.lower(): value for name, value in headers}
        self._silent = self.scope["method"] == "HEAD" or status in _WITHOUT_BODY
        if b"content-length" in names:
            self._left = int(names[b"content-length"])
        elif self._silent:
            self._left = 0
        elif self.scope["http_version"] == "1.1":
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            self.keep_alive = False  # the end of the connection is the end of the body
        if not self.complete or names.get(b"connection", b"").lower() == b"close":
            self.keep_alive = False  # what is left of the request will not be read
        if not self.keep_alive and b"connection" not in names:
            headers.append((b"connection", b"close"))
        if b"date" not in names:
            headers.append((b"date", _date()))
        self._head = encode_head(_STATUS_LINES.get(status, b"HTTP/1.1 %d " % status), headers)

    def _body(self, data: bytes, *, last: bool) -> None:
        if self._silent:
            data = b""
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (last and self._left):
                raise ValueError("the response's body is not as long as its content-length says")
        elif self._chunked:
            data = (encode_chunk(data) if data else b"") + (LAST_CHUNK if last else b"")
        if self._head or data:
            self._wire.write(self._head + data if self._head else data)
            self._head = b""
        if last:
            self.ended = True
            self._wake()


def error_response(error: GatewayError) -> bytes:
    """A complete response for a request that no app gets to see; the connection ends with it."""
    body = encode_json(error.to_body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"date", _date()),
    ]
    return encode_head(_STATUS_LINES[error.status], headers) + body


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    """The Date header's value, made once a second."""
    global _dated
    now = int(time())
    if _dated[0] != now:
        _dated = (now, formatdate(now, usegmt=True).encode())
    return _dated[1]
