"""The HTTP/1.1 client: a connection takes one request and its response after the other, and is kept for the next one;
`fetch` asks a question now and then on one of its own.
"""

import asyncio
import enum
import errno
import select
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from serve.http1.asgi import Drain, Sink
from serve.http1.message import MAX_HEAD_BYTES, STATUSES_WITHOUT_BODY
from serve.http1.resolver import ADDRESSES

# Errors of a connection that say nothing of an engine: the machine or the process has no files or memory for it.
OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_INTERIM = frozenset({100, 102, 103})  # Continue, Processing, Early Hints
READ_AHEAD_BYTES = 64 * 1024  # of a response; the engine waits while so much waits for the client
_IDLE_EXPIRY_S = 60.0
_FETCH_CONNECT_TIMEOUT_S = 2.0
TLS_KEPT_S = 5.0  # what is trusted, whatever is refused: to read it takes tens of milliseconds
MAX_ANSWER_BYTES = 64 * 2**20


class Phase(enum.Enum):
    """States of a connection, in the order in which a request moves through them."""

    IDLE = enum.auto()  # no request is under way
    HEAD = enum.auto()  # a request was sent; the head of its response has not arrived
    BODY = enum.auto()  # the head has arrived, the end of the body has not
    COMPLETE = enum.auto()  # all of the response has arrived; some of it may still wait for its reader
    CLOSED = enum.auto()  # closed by us, or broken before the response was complete


# Bound once: in Python 3.11 `Phase.BODY` costs 0.1 us more than a global, and every token passes here.
_IDLE, _HEAD, _BODY, _COMPLETE, _CLOSED = Phase


class ResponseError(ConnectionError):
    """The engine sent something that is not an HTTP response, or broke off in the middle of one."""


class Response:
    """The response to one request.

    Attributes:
        status: HTTP status; 0 until the head is complete.
        headers: By lower-case name; values of a repeated name are joined by commas.
        head_bytes: Bytes of head, trailer and framing received since a part of the body was last taken.
        parts: The parts of the body that nobody has taken.
        buffered_bytes: Bytes that have arrived with `parts` and wait as they do.
        until_closed: The body has no length; it ends when the engine closes the connection.
        keep_alive: The response is complete and leaves the connection open.
    """

    __slots__ = ("buffered_bytes", "head_bytes", "headers", "keep_alive", "parts", "status", "until_closed")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_bytes = 0
        self.parts: list[bytes] = []
        self.buffered_bytes = 0
        self.until_closed = False
        self.keep_alive = False

    def complete_head(self, status: int) -> None:
        """Settles how the body ends.

        Raises:
            ResponseError: The body has a transfer-encoding that no request accepts.
        """
        coding = self.headers.get("transfer-encoding", "chunked").strip().lower()
        if coding != "chunked":
            raise ResponseError(f"transfer-encoding {coding!r}, which no request accepts")
        is_framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        self.until_closed = not is_framed and status not in STATUSES_WITHOUT_BODY
        self.status = status

    def take(self) -> bytes:
        """Returns all parts of the body that wait."""
        parts = self.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.buffered_bytes = 0
        self.head_bytes = 0
        return data


class ClientConnection(asyncio.Protocol):
    """A connection to an engine.

    The socket is not read while `READ_AHEAD_BYTES` wait for the reader, so a slow client slows its engine down. The
    idle timeout is the engine's longest silence while somebody waits for more of a response.
    """

    def __init__(self, idle_timeout_s: float, on_lost: "Callable[[ClientConnection], None]") -> None:
        self._idle_timeout_s = idle_timeout_s
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport = asyncio.Transport()  # connection_made brings the real one
        self._parser = httptools.HttpResponseParser(self)
        self._phase = _IDLE
        self._response = Response()
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._drain: Drain = None
        self._last_byte_at = 0.0
        self._silence_timer: asyncio.TimerHandle | None = None
        self._arrivals = select.poll()

    @property
    def status(self) -> int:
        """HTTP status of the response; 0 until its head has arrived."""
        return self._response.status

    @property
    def headers(self) -> dict[str, str]:
        """The response's headers by lower-case name; values of a repeated name are joined by commas."""
        return self._response.headers

    @property
    def reusable(self) -> bool:
        """True if the response was read to its end and another request may follow."""
        response = self._response
        at_end = self._phase is _COMPLETE and not response.parts and self._drain is None
        return at_end and response.keep_alive and not self._transport.is_closing()

    @property
    def quiet(self) -> bool:
        """True if the engine has sent nothing, not even its end, since the response before.

        The socket itself is asked: bytes that the event loop has not read yet would become the next request's response.
        """
        return self._phase is _IDLE and not self._transport.is_closing() and not self._arrivals.poll(0)

    @property
    def silence_s(self) -> float:
        """Seconds since the last byte of a response that is not complete; 0 while its reader is slower."""
        waits = self._phase is _BODY and self._waiter is not None and self._drain is None
        return self._loop.time() - self._last_byte_at if waits else 0.0

    def give_up(self) -> None:
        """Ends a response whose engine is silent for too long, and tells the engine."""
        self._abort(TimeoutError("silent for much longer than before"))

    def send(self, head: bytes, *body: bytes | memoryview) -> None:
        """Sends a request, with its body in parts. The connection is new, or the last response was finished."""
        self._phase = _HEAD
        self._response = Response()
        self._last_byte_at = self._loop.time()
        if self._silence_timer is None:  # that of the request before is as good: it looks when the last byte came
            self._look_after(self._idle_timeout_s)
        self._transport.writelines((head, *body))

    async def receive_head(self) -> None:
        """Waits until `status` and `headers` are known.

        Raises:
            TimeoutError: The engine was silent for too long.
            ConnectionError: The connection broke.
        """
        while not self._response.status:
            await self._wait()

    async def read(self) -> bytes:
        """Returns what has arrived of the body, waiting for at least a byte; empty at the end of the body.

        Raises:
            TimeoutError: The engine was silent for too long.
            ConnectionError: The connection broke before the body was complete.
        """
        response = self._response
        while not response.parts:
            if self._phase is _COMPLETE:
                return b""
            await self._wait()
        was_paused = response.buffered_bytes > READ_AHEAD_BYTES
        data = response.take()
        if was_paused:
            self._resume_reading()
        return data

    async def pump(self, sink: Sink) -> None:
        """Passes the rest of the body to `sink` straight from the event loop; returns at its end or after `stop`.

        No task wakes up for a read: that would be half the cost of a streamed token. While the `Drain` that the sink
        returned is pending, it gets nothing.

        Raises:
            TimeoutError: The engine was silent for too long.
            ConnectionError: The connection broke before the body was complete.
        """
        was_paused = self._response.buffered_bytes > READ_AHEAD_BYTES
        self._sink = sink
        try:
            if self._response.parts and self._drain is None:
                self._forward(sink)
            if was_paused and self._drain is None:
                self._resume_reading()
            while self._sink is not None and (self._phase is not _COMPLETE or self._response.parts):
                await self._wait()
        finally:
            self._sink = None

    def stop(self) -> None:
        """Ends `pump`: the rest of the response is not wanted."""
        self._sink = None
        self._wake()

    def finish(self) -> None:
        """Makes a reusable connection idle; it closes if it is not used again for a while."""
        self._phase = _IDLE
        self._last_byte_at = self._loop.time()

    def close(self) -> None:
        """Closes the connection at once; an engine that still works on the request notices."""
        self._phase = _CLOSED
        self._cancel_silence_timer()
        self._transport.abort()

    def _forward(self, sink: Sink) -> None:
        """Passes on what waits."""
        if (drain := sink(self._response.take())) is not None:
            self._wait_for(drain)

    def _wait_for(self, drain: "asyncio.Future[None]") -> None:
        self._drain = drain
        self._transport.pause_reading()
        drain.add_done_callback(self._drained)

    def _drained(self, _: "asyncio.Future[None]") -> None:
        self._drain = None
        if self._sink is not None and self._response.parts:
            self._forward(self._sink)
        if self._drain is None:
            self._resume_reading()
        if self._phase is _COMPLETE:
            self._wake()

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._last_byte_at = self._loop.time()  # the silence so far was ours
            self._transport.resume_reading()

    async def _wait(self) -> None:
        """Waits for anything to happen to the response, or raises the error that ended it."""
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
        """Gives up what has not arrived of the response."""
        if self._phase is not _COMPLETE and self._error is None:
            self._phase = _CLOSED
            self._error = error
            self._wake()

    def _abort(self, error: OSError) -> None:
        self._fail(error)
        self._response.keep_alive = False
        self._transport.abort()

    def _look_after(self, delay_s: float) -> None:
        """One timer for all requests of a connection is cheaper than one for every request or read."""
        delay_s = min(delay_s, self._idle_timeout_s, _IDLE_EXPIRY_S)
        self._silence_timer = self._loop.call_later(delay_s, self._check_silence)

    def _check_silence(self) -> None:
        longest_s = _IDLE_EXPIRY_S if self._phase is _IDLE else self._idle_timeout_s
        left_s = self._last_byte_at + longest_s - self._loop.time()
        if left_s <= 0 and self._phase is _IDLE:
            self.close()
        elif left_s <= 0 and self._waiter is not None and self._drain is None:
            self._abort(TimeoutError(f"no byte for {longest_s:g} s"))
        else:
            self._look_after(max(left_s, longest_s / 10))

    def _cancel_silence_timer(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bounds what a single read may bring: otherwise a quarter of a megabyte, of each engine that runs ahead.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_AHEAD_BYTES // 2)
        self._arrivals.register(sock.fileno(), select.POLLIN)
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._phase is not _BODY and not (data := self._before_body(data)):  # of a stream it nearly always is
            return
        self._last_byte_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._abort(ResponseError("a change of protocol, which no request asks for"))
        except httptools.HttpParserError as error:
            self._abort(ResponseError(f"not an HTTP response: {error}"))
        response, sink = self._response, self._sink
        parts = response.parts
        if not parts:  # a part of a head, trailer or chunk extension
            self._count_head_bytes(len(data))
        elif sink is not None and self._drain is None:
            if len(parts) == 1:  # nearly always, and every token comes here: `_forward`, without the calls
                part = parts[0]
                parts.clear()  # `pop` keeps the list's memory, and has it moved twice for every token
                response.buffered_bytes = response.head_bytes = 0
                if (drain := sink(part)) is not None:
                    self._wait_for(drain)
            else:
                self._forward(sink)
        else:
            self._count_buffered_bytes(len(data))
        if self._sink is None or self._phase is not _BODY:  # nobody waits for a part of a stream
            self._wake()

    def _before_body(self, data: bytes) -> bytes:
        """Takes what is too much to be read at once; returns what is left to be read."""
        if self._phase is _IDLE:
            self.close()  # nobody has asked for anything, so nobody can say what this would be a response to
            return b""
        if self._phase is _HEAD and len(data) > MAX_HEAD_BYTES:  # perhaps 40,000 headers
            self.data_received(data[:MAX_HEAD_BYTES])
            return b"" if self._phase is _CLOSED else data[MAX_HEAD_BYTES:]
        return data

    def _count_buffered_bytes(self, received_bytes: int) -> None:
        self._response.buffered_bytes += received_bytes
        if self._sink is None and self._response.buffered_bytes > READ_AHEAD_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()

    def _count_head_bytes(self, received_bytes: int) -> None:
        self._response.head_bytes += received_bytes
        if self._response.head_bytes > MAX_HEAD_BYTES:
            self._abort(ResponseError("the head or trailer of the response is too long"))

    def eof_received(self) -> None:
        """Returns nothing, which closes the connection: no response can arrive over a half-closed one."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._phase is _BODY and self._response.until_closed and exc is None:
            self._phase = _COMPLETE
            self._wake()
        self._fail(ResponseError("the connection broke before the response was complete"))
        self._cancel_silence_timer()
        self._on_lost(self)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._phase is _COMPLETE:
            self._abort(ResponseError("a second response to one request"))
        else:
            self._response.headers = {}  # those before were of an interim response

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not _HEAD:  # a trailer, which nobody reads
            self._count_head_bytes(len(name) + len(value))
            return
        headers, key, text = self._response.headers, name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status in _INTERIM or self._phase is not _HEAD:
            return  # the response itself is to follow; or it is a second response
        if status < 200:
            self._abort(ResponseError(f"the status {status}, which no request asks for"))
            return
        try:
            self._response.complete_head(status)
        except ResponseError as error:
            self._abort(error)
        else:
            self._phase = _BODY

    def on_body(self, body: bytes) -> None:
        if self._phase is _BODY:
            self._response.parts.append(body)

    def on_message_complete(self) -> None:
        if self._phase is _BODY:
            self._phase = _COMPLETE
            self._response.keep_alive = bool(self._parser.should_keep_alive())


class ConnectTimeoutError(TimeoutError):
    """Nobody accepted the connection in time."""


class Origin(NamedTuple):
    """An engine's base URL, split as a connection needs it.

    Attributes:
        authority: For the Host header.
        prefix: Precedes every path; without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(url: str) -> "Origin":
        """Splits a base URL, `http` or `https`."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2]
        return Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls, authority, parts.path.rstrip("/"))

    def request_head(self, method: str, path: str, headers: Iterable[tuple[str, str]], body_bytes: int) -> bytes:
        """Returns the head of a request to the server, including the empty line that ends it. The path is behind the
        base URL; headers are without those that describe connection and body. As text that is encoded once it costs
        half of what `encode_head` would.

        Raises:
            ValueError: As of `encode_head`, or something holds what Latin-1 does not have.
        """
        own = (("host", self.authority), ("content-length", str(body_bytes)))
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", *map(": ".join, headers), *map(": ".join, own), "", ""]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError("a header holds a line break")
        return head.encode("latin-1")


class ConnectionPool:
    """Keep-alive connections by origin. The one used last is used first. `authorities` is a file with the certificates
    that are trusted, in place of the system's.
    """

    def __init__(self, connect_timeout_s: float, read_timeout_s: float, authorities: str | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._idle: defaultdict[Origin, dict[ClientConnection, None]] = defaultdict(dict)
        self._authorities = authorities
        self._tls: ssl.SSLContext | None = None
        self._tls_read_s = 0.0

    def take_idle(self, origin: Origin) -> ClientConnection | None:
        """Returns an idle connection, or None if there is none. Closes those on which an engine has said something."""
        idle = self._idle.get(origin)
        while idle:
            connection, _ = idle.popitem()
            if connection.quiet:
                return connection
            connection.close()
        return None

    async def connect(self, origin: Origin) -> ClientConnection:
        """Opens a connection.

        Raises:
            ConnectTimeoutError: Nobody accepted it in time.
            OSError: Nobody listens there, the name is unknown, or the certificate is not valid.
        """
        idle = self._idle[origin]

        def on_lost(connection: ClientConnection) -> None:
            idle.pop(connection, None)

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                *others, last = await ADDRESSES.of(origin.host)
                for address in others:
                    with suppress(OSError):  # refused, or on a network without a way there; the next one may answer
                        return await self._connect_to(address, origin, on_lost)
                return await self._connect_to(last, origin, on_lost)
        except ssl.SSLCertVerificationError:  # who renews an engine's certificate may renew what is trusted, too
            if time.monotonic() - self._tls_read_s > TLS_KEPT_S:
                self._tls = None
            raise
        except TimeoutError as error:
            raise ConnectTimeoutError(f"no connection within {self._connect_timeout_s:g} s") from error

    async def _connect_to(
        self, address: str, origin: Origin, on_lost: Callable[[ClientConnection], None]
    ) -> ClientConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(self._read_timeout_s, on_lost),
            address,
            origin.port,
            ssl=self._context() if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return connection

    def release(self, origin: Origin, connection: ClientConnection) -> None:
        """Keeps a connection for the next request if it is reusable, else closes it."""
        if not connection.reusable:
            connection.close()
            return
        connection.finish()
        self._idle[origin][connection] = None

    def close_idle(self, origin: Origin) -> None:
        for connection in list(self._idle[origin]):
            connection.close()
        self._idle[origin].clear()

    def close(self) -> None:
        """Closes all idle connections."""
        for origin in list(self._idle):
            self.close_idle(origin)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._authorities)
            self._tls_read_s = time.monotonic()
            if self._authorities is not None:  # clusters make such certificates, and not always by the letter
                self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return self._tls


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole HTTP response.

    Attributes:
        headers: By lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    timeout_s: float = 10.0,
    most_bytes: int = MAX_ANSWER_BYTES,
    authorities: str | None = None,
) -> HttpResponse:
    """Sends a request; follows no redirect. The path behind the server's base URL has its query, and the key goes into
    the header `authorization`. What is beyond `most_bytes` of the answer is not read; `authorities` are as of
    `ConnectionPool`.

    Raises:
        OSError: It does not answer, or not in time.
    """
    origin = Origin.of(url)
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    if key is not None:
        fields.append(("authorization", f"Bearer {key}"))
    head = origin.request_head(method, path, fields, len(body))
    connections = ConnectionPool(_FETCH_CONNECT_TIMEOUT_S, timeout_s, authorities)
    async with asyncio.timeout(timeout_s):
        connection = await connections.connect(origin)
        try:
            connection.send(head, body)
            await connection.receive_head()
            parts = bytearray()
            while (part := await connection.read()) and len(parts) <= most_bytes:
                parts += part
            return HttpResponse(connection.status, connection.headers, bytes(parts))
        finally:
            connection.close()
