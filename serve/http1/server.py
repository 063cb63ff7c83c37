"""Our own HTTP/1.1 listener: from the socket to ASGI and back with nothing in between (docs/adr/0016).

uvicorn accepts the connections, lists and drains them; this is the protocol that it speaks on each.
"""

import asyncio
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
from serve.http1.asgi import DIRECT, AsgiApp
from serve.http1.cycle import Call, error_response
from serve.http1.request_head import addresses, refusal, scope_of
from serve.http1.wire import MAX_HEAD_BYTES

log = logging.getLogger("ray.serve.specgate.front")


_TICK_S = 15.0  # how often a connection looks at its deadline; cheaper than a timer for every request


_KEEP_ALIVE_S = 75.0  # longer than the proxies before us keep a connection, so that they close it and not we


_REQUEST_S = 300.0  # for a whole request to arrive


_DRAIN_S = 300.0  # for a client to take what waits for it


_LINGER_S = 2.0  # to read what a refused client still sends: closed before that, it would not get to read our answer


@dataclass(frozen=True, slots=True)
class Apps:
    """Who answers what.

    Attributes:
        hot: By path, who answers POST there; cancelled when the client leaves.
        rest: Answers everything else; told in ASGI's way when the client leaves.
    """

    hot: Mapping[str, AsgiApp]
    rest: AsgiApp


class Front(asyncio.Protocol):
    """One connection of a client. Requests are answered in the order in which they came.

    A client that closes its sending half counts as gone: it is how a client that leaves looks from here.

    Args:
        apps: Who answers.
        connections: Where the connection is listed while it lasts.
        tasks: Where a call is listed while it runs.
    """

    def __init__(self, apps: Apps, connections: set[Any], tasks: set[asyncio.Task[None]]) -> None:
        self._apps, self._connections, self._tasks = apps, connections, tasks
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._calls: deque[Call] = deque()  # the first is being answered, the others wait
        self._task: asyncio.Task[None] | None = None
        self._incoming: Call | None = None
        self._refusal: GatewayError | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._head_bytes = 0
        self.room: asyncio.Future[None] | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._deadline = self._loop.time() + _KEEP_ALIVE_S
        self._ticking: asyncio.TimerHandle
        self._in_head = self._draining = self._closing = self._paused = self._resuming = False

    # The connection as uvicorn and the calls see it.

    def shutdown(self) -> None:
        """End the connection after the answers that have begun."""
        self._draining = True
        if not self._calls:
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._transport.write(data)

    def read_on(self, wanted: bool) -> None:
        """Whether more may come in."""
        if wanted == self._paused and not self._transport.is_closing():
            self._paused = not wanted
            self._transport.resume_reading() if wanted else self._transport.pause_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        self._connections.add(self)
        self._addresses = addresses(transport)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._refusal is not None:
            return
        began_in_head = self._in_head
        self._feed(data)
        if began_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._reject(HeadTooLargeError(f"The request's head is longer than {MAX_HEAD_BYTES} bytes."))
        if self._refusal is not None and not self._calls:
            self._refuse(self._refusal)
        elif len(self._calls) > 1:
            self.read_on(False)

    def eof_received(self) -> None:
        """Returns nothing, which closes the connection."""

    def pause_writing(self) -> None:
        self.room = self._loop.create_future()
        self._stuck = self._loop.call_later(_DRAIN_S, self._transport.abort)

    def resume_writing(self) -> None:
        if self.room is not None and not self.room.done():
            self.room.set_result(None)
        if self._stuck is not None:
            self._stuck.cancel()
        self.room = self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._ticking.cancel()
        self._connections.discard(self)
        for call in self._calls:
            call.leave()
        if self._task is not None and self._calls and self._hot(self._calls[0]) is not None:
            self._task.cancel()
        self.resume_writing()

    def _tick(self) -> None:
        if self._loop.time() > self._deadline:
            self._transport.close()
        else:
            self._ticking = self._loop.call_later(_TICK_S, self._tick)

    # What the parser calls.

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            self._decline_upgrade(data[error.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(InvalidRequestError(f"This is not HTTP/1.1: {error}."))

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._url, self._headers, self._head_bytes, self._in_head = b"", [], 0, True

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:  # or else it is a trailer, or the head is known already
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._resuming or self._refusal is not None:
            self._resuming = False
            return
        version, method = self._parser.get_http_version(), self._parser.get_method().decode("latin-1")
        if error := refusal(version, method, self._url, self._headers):
            self._reject(error)
            return
        scope = {**scope_of(version, method, self._url, self._headers), **self._addresses}
        waits = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        call = Call(self, scope, waits and version == "1.1", version == "1.1" and self._parser.should_keep_alive())
        scope["extensions"][DIRECT]["write"] = call.write
        self._incoming, self._deadline = call, self._loop.time() + _REQUEST_S
        self._calls.append(call)
        if len(self._calls) == 1:
            self._answer()

    def on_body(self, body: bytes) -> None:
        if self._incoming is not None:
            self._incoming.feed(body)

    def on_message_complete(self) -> None:
        if self._incoming is not None and not self._parser.should_upgrade():
            self._deadline = math.inf
            self._incoming.finish()
            self._incoming = None

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as a server may: some clients offer HTTP/2 with every first request, body and all.

        The parser has stopped behind the head; another one gets a head that frames the body in the same way.
        """
        self._parser = httptools.HttpRequestParser(self)
        framing = [b"%b: %b\r\n" % h for h in self._headers if h[0] in (b"content-length", b"transfer-encoding")]
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        self._feed(rest)

    # One call after the other.

    def _hot(self, call: Call) -> AsgiApp | None:
        return self._apps.hot.get(call.scope["path"]) if call.scope["method"] == "POST" else None

    def _answer(self) -> None:
        call = self._calls[0]
        app = self._hot(call) or self._apps.rest
        self._task = self._loop.create_task(app(call.scope, call.receive, call.send))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._answered)
        self.read_on(True)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task, call = None, self._calls.popleft()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s %s failed", call.scope["method"], call.scope["path"], exc_info=error)
        if self._closing:
            return
        if not call.ended:
            if call.status:
                self._transport.abort()  # how a client can tell it from an answer that is whole
            else:
                self._refuse(GatewayError("Internal error; the gateway's log knows more."))
        elif self._draining or not call.keep_alive:
            self._hang_up()
        elif self._calls:
            self._answer()
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._deadline = self._loop.time() + _KEEP_ALIVE_S
            self.read_on(True)

    def _reject(self, error: GatewayError) -> None:
        """Nothing that follows can be trusted to begin where it seems to: answer what came before, then this, close."""
        self._refusal, self._incoming = self._refusal or error, None

    def _refuse(self, error: GatewayError) -> None:
        self._transport.write(error_response(error))
        self._hang_up()

    def _hang_up(self) -> None:
        self.read_on(True)
        self._closing = True
        if self._incoming is None and self._refusal is None:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.close)


def protocol(hot: Mapping[str, AsgiApp]) -> Callable[..., Front]:
    """What uvicorn takes as its `http`: the protocol for its own app, with some paths answered before it.

    Args:
        hot: `Apps.hot`. They live in the event loop that makes this call; where uvicorn runs in another one, its own
            app gets these requests too.
    """
    home = asyncio.get_running_loop()

    def made(config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None) -> Front:
        here = hot if asyncio.get_running_loop() is home else {}
        return Front(Apps(here, config.loaded_app), server_state.connections, server_state.tasks)

    return made


def answer_first(hot: Mapping[str, AsgiApp]) -> None:
    """Make the uvicorn servers that this process starts from now on answer some paths before their app does.

    For a Ray Serve replica, which starts its own server and takes no protocol for it.
    """
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol(hot)  # type: ignore[assignment]
