"""One HTTP/1.1 connection to an engine: a request out, its answer in, then the next."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

from serve.http1.wire import MAX_HEAD_BYTES, READ_AHEAD_BYTES

Take = Callable[[bytes], "asyncio.Future[None] | None"]

_NO_BODY = frozenset({204, 304})


class AnswerError(ConnectionError):
    """What came back is no HTTP answer, or broke off."""


class Connection(asyncio.Protocol):
    """A client connection; answers are read as they arrive, whatever the cuts between packets.

    Nothing is read from the socket while `READ_AHEAD_BYTES` wait for the reader, so a slow client slows its engine.

    Args:
        idle_timeout_s: Longest silence while somebody waits for more of an answer.
        lost: Called once, when the connection is closed.

    Attributes:
        status: HTTP status of the answer that `head` has waited for.
        headers: Its headers by lower-case name; several of one name are joined by commas.
        answered: Bytes of an answer to the present request have arrived.
    """

    def __init__(self, idle_timeout_s: float, lost: "Callable[[Connection], None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout_s, self._lost = idle_timeout_s, lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._paused = self.closed = False
        self._error: OSError | None = None
        self._busy = False
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answered = False
        self._head_bytes = 0
        self._has_head = self._complete = self._until_closed = self._stopped = False
        self._parts: list[bytes] = []
        self._size = 0
        self._take: Take | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """The answer is read to its end, and another request may follow."""
        return self._complete and not self._parts and not self.closed and self._keep_alive

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request; the answer to the one before is complete."""
        self._begin()
        self._busy, self._keep_alive = True, False
        self._heard = self._loop.time()
        self._watch = self._loop.call_later(self._idle_timeout_s, self._check_silence)
        self._transport.writelines((head, body))

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            TimeoutError: The engine is silent for too long.
            ConnectionError: The connection broke.
        """
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """Everything of the body that has arrived, at least a byte; empty at its end.

        Raises:
            TimeoutError: The engine is silent for too long.
            ConnectionError: The connection broke before the body was complete.
        """
        while not self._parts:
            if self._complete:
                return b""
            await self._more()
        data = self._taken()
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._heard = self._loop.time()
            self._transport.resume_reading()
        return data

    async def pump(self, take: Take) -> None:
        """Hand on what follows of the body straight from the event loop, and return at its end or when stopped.

        No task wakes for a read: for a stream of tokens that is half of what one costs.

        Args:
            take: Gets everything that has arrived; may return a future to wait for before it is given more.

        Raises:
            TimeoutError: The engine is silent for too long.
            ConnectionError: The connection broke before the body was complete.
        """
        self._take = take
        try:
            self._hand_on()
            while not (self._stopped or (self._complete and not self._parts)):
                await self._more()
        finally:
            self._take = None

    def stop(self) -> None:
        """Nothing more of this answer is wanted."""
        self._stopped, self._take = True, None
        self._wake()

    def _hand_on(self) -> None:
        if self._take is None or not self._parts or self._room is not None:
            return
        self._room = self._take(self._taken())
        if self._room is not None:
            self._transport.pause_reading()
            self._room.add_done_callback(self._go_on)

    def _go_on(self, _: "asyncio.Future[None]") -> None:
        self._room = None
        self._heard = self._loop.time()
        self._hand_on()
        if self._room is None and not self._transport.is_closing():
            self._transport.resume_reading()
        if self._complete:
            self._wake()

    def _taken(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size = [], 0
        return data

    def rest(self) -> None:
        """The answer is done with: stop watching for silence."""
        self._busy = False
        if self._watch is not None:
            self._watch.cancel()

    def close(self) -> None:
        """Close at once; an engine that still works for us hears of it."""
        self.rest()
        self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: OSError) -> None:
        if not self._complete and self._error is None:
            self._error = error
            self._wake()

    def _check_silence(self) -> None:
        """One timer a request, looked at when it fires, costs less than one for every read."""
        left = self._heard + self._idle_timeout_s - self._loop.time()
        if left <= 0 and self._waiter is not None and self._room is None:
            self._fail(TimeoutError(f"no byte for {self._idle_timeout_s:g} s"))
            self._transport.abort()
        else:
            self._watch = self._loop.call_later(max(left, self._idle_timeout_s / 10), self._check_silence)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.close()  # nobody has asked; it can't be told what this would be the answer to
            return
        self.answered, self._heard = True, self._loop.time()
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._spoilt(f"no HTTP answer: {error}")
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._spoilt("the head of the answer is too long")
        self._hand_on()

    def _spoilt(self, reason: str) -> None:
        self._fail(AnswerError(reason))
        self._keep_alive = False
        self._transport.abort()

    def eof_received(self) -> None:
        """A half-closed connection is a closed one: nothing more can come over it."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._until_closed and exc is None and self._error is None:
            self._complete = True
            self._wake()
        self._fail(AnswerError("the connection broke before the answer was complete"))
        self.rest()
        self._lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._complete:  # a second answer to one request
            self._spoilt("more than one answer")
        elif not self._has_head:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer: nobody reads it
        key, said = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {said}" if key in self.headers else said

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._complete:
            return  # 100 Continue, 103 Early Hints: the answer itself follows; or it is complete, and spoilt by another
        coding = self.headers.get("transfer-encoding", "chunked").strip().lower()
        if coding != "chunked":
            self._spoilt(f"transfer-encoding {coding!r} was not asked for")
            return
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        self._until_closed = not framed and status not in _NO_BODY
        self.status, self._has_head = status, True
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._complete:
            return
        self._parts.append(body)
        self._size += len(body)
        if self._size > READ_AHEAD_BYTES and not self._paused and self._take is None:
            self._paused = True
            self._transport.pause_reading()
        if self._take is None:
            self._wake()

    def on_message_complete(self) -> None:
        if self._has_head and not self._complete:
            self._complete = True
            self._keep_alive = bool(self._parser.should_keep_alive())
            self._wake()
