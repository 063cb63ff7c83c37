"""An HTTP/1.1 listener from the socket to ASGI with nothing in between (docs/adr/0016).

uvicorn accepts the connections, lists them and drains them; it speaks this protocol on each.
"""

import asyncio
import enum
import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools
import uvicorn.config

from serve.errors import GatewayError, HeadTooLargeError, InvalidRequestError
from serve.http1.asgi import DIRECT, AsgiApp, Drain
from serve.http1.cycle import ENDED, PENDING, RequestResponseCycle, error_response
from serve.http1.request_head import addresses, build_scope, reject_ambiguous
from serve.http1.wire import MAX_HEAD_BYTES, RawHeaders

log = logging.getLogger("ray.serve.specgate.http1")

_DEADLINE_CHECK_S = 15.0  # one timer for a connection is cheaper than one for every request
_KEEP_ALIVE_S = 75.0  # longer than the proxies before us: they should be the ones to close an idle connection
_REQUEST_TIMEOUT_S = 300.0  # for a whole request to arrive
_WRITE_TIMEOUT_S = 300.0  # for a client to take what was written
_LINGER_S = 2.0  # closed while a rejected client still sends, the connection would lose our response to it


class Parsing(enum.Enum):
    """What the parser is in."""

    BETWEEN = enum.auto()  # no request, or a whole one
    HEAD = enum.auto()
    BODY = enum.auto()  # of the last request in the queue
    REJECTED = enum.auto()  # a request that was not understood: nothing after it is read


class Lifetime(enum.Enum):
    """How far a connection is from its end."""

    OPEN = enum.auto()
    ENDING = enum.auto()  # closes after the response that is under way
    CLOSED = enum.auto()  # nothing more is read, and no request is served


# Bound once: in Python 3.11 `Parsing.HEAD` costs 0.1 us more than a global.
_BETWEEN, _HEAD, _BODY, _REJECTED = Parsing
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

    A client that closes its sending half is taken to have left: from here the two look the same.

    Args:
        apps: Serve the requests.
        connections: Holds this connection while it is open.
        tasks: Holds the task of every call to an app while it runs.
    """

    def __init__(self, apps: Apps, connections: set[Any], tasks: set[asyncio.Task[None]]) -> None:
        self.drain: Drain = None
        self._apps = apps
        self._connections = connections
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._transport = asyncio.Transport()  # connection_made brings the real one
        self._addresses: dict[str, Any] = {}
        self._lifetime = _OPEN
        self._deadline = self._loop.time() + _KEEP_ALIVE_S
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

        self._parser = httptools.HttpRequestParser(self)
        self._parsing = _BETWEEN
        self._rejection: GatewayError | None = None
        self._url = b""
        self._headers: RawHeaders = []
        self._head_bytes = 0

        self._cycles: deque[RequestResponseCycle] = deque()  # the first is being served, the others wait
        self._task: asyncio.Task[None] | None = None

    # For uvicorn and the cycles.

    def shutdown(self) -> None:
        """Closes the connection after the response that is under way."""
        if self._lifetime is _OPEN:
            self._lifetime = _ENDING
        if not self._cycles:
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Sends bytes to the client."""
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Makes the client wait before it sends more."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Lets the client send more."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)
        self._deadline_timer = self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadline)
        self._connections.add(self)
        self._addresses = addresses(transport)

    def data_received(self, data: bytes) -> None:
        if self._lifetime is _CLOSED or self._parsing is _REJECTED:
            return
        began_in_head = self._parsing is _HEAD
        self._parse(data)
        if began_in_head and self._parsing is _HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._reject(HeadTooLargeError(f"The request's head is longer than {MAX_HEAD_BYTES} bytes."))
        if self._rejection is not None and not self._cycles:
            self._close_with(self._rejection)
        elif len(self._cycles) > 1:
            self.pause_reading()

    def eof_received(self) -> None:
        """Closes the connection by returning nothing."""

    def pause_writing(self) -> None:
        self.drain = self._loop.create_future()
        self._write_timer = self._loop.call_later(_WRITE_TIMEOUT_S, self._transport.abort)

    def resume_writing(self) -> None:
        if self.drain is not None and not self.drain.done():
            self.drain.set_result(None)
        self.drain = None
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lifetime = _CLOSED
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._connections.discard(self)
        for cycle in self._cycles:
            cycle.abandon()
        if self._task is not None and self._cycles and self._direct_app(self._cycles[0]) is not None:
            self._task.cancel()
        self.resume_writing()

    def _check_deadline(self) -> None:
        if self._loop.time() > self._deadline:
            self._transport.close()
        else:
            self._deadline_timer = self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadline)

    # Called by the parser. A request begins BETWEEN and its head is collected in HEAD; in the other states there is
    # nothing to collect: it is a trailer, follows a rejected request, or repeats a head (see `_decline_upgrade`).

    def on_message_begin(self) -> None:
        if self._parsing is _BETWEEN:
            self._parsing = _HEAD
            self._url = b""
            self._headers = []
            self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._parsing is _HEAD:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parsing is _HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parsing is not _HEAD:
            return
        version = self._parser.get_http_version()
        method = self._parser.get_method().decode("latin-1")
        if error := reject_ambiguous(version, method, self._url, self._headers):
            self._reject(error)
            return
        self._parsing = _BODY
        self._deadline = self._loop.time() + _REQUEST_TIMEOUT_S
        self._cycles.append(self._cycle(version, method))
        if len(self._cycles) == 1:
            self._serve_next()

    def on_body(self, body: bytes) -> None:
        if self._parsing is _BODY:
            self._cycles[-1].feed(body)

    def on_message_complete(self) -> None:
        if self._parsing is _BODY and not self._parser.should_upgrade():
            self._parsing = _BETWEEN
            self._deadline = math.inf
            self._cycles[-1].finish()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self._parsing is _BODY:
                self._decline_upgrade(data[error.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(InvalidRequestError(f"This is not HTTP/1.1: {error}."))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1, as a server may: some clients offer HTTP/2 with every first request, body and all.

        The parser has stopped after the head. A new one reads a head that frames the body in the same way; we are in
        BODY, so nothing is collected from it a second time, and the body that follows belongs to the same request.
        """
        self._parser = httptools.HttpRequestParser(self)
        framing = [b"%b: %b\r\n" % h for h in self._headers if h[0] in (b"content-length", b"transfer-encoding")]
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        self._parse(rest)

    def _reject(self, error: GatewayError) -> None:
        """Reads nothing more, because nobody can tell where the next request begins.

        The requests before get their responses first, then the client gets this error.
        """
        self._parsing = _REJECTED
        self._rejection = self._rejection or error

    # One cycle after the other.

    def _cycle(self, version: str, method: str) -> RequestResponseCycle:
        scope = build_scope(version, method, self._url, self._headers)
        scope.update(self._addresses)
        asks = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        expects_continue = asks and version == "1.1"
        keep_alive = version == "1.1" and self._parser.should_keep_alive()
        cycle = RequestResponseCycle(self, scope, expects_continue, keep_alive)
        scope["extensions"] = {DIRECT: {"write": cycle.write}}
        return cycle

    def _direct_app(self, cycle: RequestResponseCycle) -> AsgiApp | None:
        return self._apps.direct.get(cycle.scope["path"]) if cycle.scope["method"] == "POST" else None

    def _serve_next(self) -> None:
        cycle = self._cycles[0]
        app = self._direct_app(cycle) or self._apps.fallback
        self._task = self._loop.create_task(app(cycle.scope, cycle.receive, cycle.send))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._served)
        self.resume_reading()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task = None
        cycle = self._cycles.popleft()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s %s failed", cycle.scope["method"], cycle.scope["path"], exc_info=error)
        if self._lifetime is _CLOSED:
            return
        if cycle.progress is PENDING:
            self._close_with(GatewayError("Internal error; see the server's log."))
        elif cycle.progress is not ENDED:
            self._transport.abort()  # so that the client cannot take the response for a whole one
        elif self._lifetime is _ENDING or not cycle.keep_alive:
            self._close()
        elif self._cycles:
            self._serve_next()
        elif self._rejection is not None:
            self._close_with(self._rejection)
        else:
            self._deadline = self._loop.time() + _KEEP_ALIVE_S
            self.resume_reading()

    def _close_with(self, error: GatewayError) -> None:
        self._transport.write(error_response(error))
        self._close()

    def _close(self) -> None:
        self.resume_reading()
        self._lifetime = _CLOSED
        if self._parsing is _BETWEEN or self._parsing is _HEAD:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.close)


def protocol_factory(direct: Mapping[str, AsgiApp]) -> Callable[..., ServerProtocol]:
    """Returns uvicorn's `http`: the protocol for uvicorn's own app, with some paths served before it.

    Args:
        direct: `Apps.direct`. They live in the event loop that makes this call; where uvicorn runs in another one, its
            own app gets these requests too.
    """
    home = asyncio.get_running_loop()

    def create(
        config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> ServerProtocol:
        here = direct if asyncio.get_running_loop() is home else {}
        return ServerProtocol(Apps(here, config.loaded_app), server_state.connections, server_state.tasks)

    return create


def serve_directly(direct: Mapping[str, AsgiApp]) -> None:
    """Makes every uvicorn server that this process starts from now on serve some paths before its own app.

    For a Ray Serve replica, which starts its own server and cannot be given a protocol for it.
    """
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol_factory(direct)  # type: ignore[assignment]
