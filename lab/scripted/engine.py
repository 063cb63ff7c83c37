"""The scripted engine behind the gateway under test: every request is answered the way its case wants it.

A case and the engine share a process, so a case hands its script over as a function. A mark in the request's first
message says which script is meant: headers and other fields may not survive the way through a gateway. What comes
without a mark is answered by the script that is in force for all.

It speaks HTTP by itself, because half of what it is for no server library would send: bodies that break off, trailers
without an end, other protocols.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import httptools

from lab.scripted import scripts
from lab.scripted.arrival import Arrival, Script

_MARK = re.compile(rb"conform-[0-9a-f]{12}")
_OFFER = ("connection", "upgrade", "http2-settings")
_PATHS = ("/v1/chat/completions", "/v1/completions")


class ScriptedEngine:
    """An OpenAI-compatible server on one port.

    Args:
        model: The only model that it lists.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        paths: Ends of the paths that are a client's; a POST to another one is a stray.

    Attributes:
        script: Answers requests without a mark.
        scripts: Script by mark.
        arrivals: (mark, request) of every completion request in order; the mark is "" if there is none.
        arrived: Event by mark, set by the first request with it.
        strays: Every POST to a path that is none of a client's, in order; it is answered 404.
    """

    def __init__(self, model: str, host: str = "127.0.0.1", port: int = 0, paths: Sequence[str] = _PATHS) -> None:
        self._model = model
        self._host = host
        self._paths = tuple(paths)
        self.port = port
        self.script: Script = scripts.plain
        self.scripts: dict[str, Script] = {}
        self.arrivals: list[tuple[str, Arrival]] = []
        self.arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.strays: list[Arrival] = []
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        return f"http://{self._host}:{self.port}"

    def of(self, mark: str) -> list[Arrival]:
        """Returns the requests with a mark, in order of arrival."""
        return [arrival for arrival_mark, arrival in self.arrivals if arrival_mark == mark]

    def forget(self) -> None:
        """Drop the scripts and arrivals of the previous case."""
        self.scripts.clear()
        self.arrivals.clear()
        self.arrived.clear()
        self.strays.clear()

    async def listen(self) -> None:
        """Accept connections, also after `hang_up`."""
        loop = asyncio.get_running_loop()
        connection = lambda: _Connection(self, self._connections)  # noqa: E731
        self._server = await loop.create_server(connection, self._host, self.port, reuse_address=True, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def hang_up(self) -> None:
        """Stop listening and drop every connection, like a process that dies."""
        if self._server is not None:
            self._server.close()
        scripts_under_way = [connection.abort() for connection in tuple(self._connections)]
        await asyncio.gather(*filter(None, scripts_under_way), return_exceptions=True)

    async def answer(self, method: str, arrival: Arrival) -> None:
        """Answers one request."""
        if method != "POST":
            # Gateways ask for health, load and metrics under many names.
            listed = {"id": self._model, "object": "model", "created": 1, "owned_by": "lab"}
            models = arrival.path.partition("?")[0].endswith("/v1/models")
            await arrival.json({"object": "list", "data": [listed]} if models else {"status": "ok"})
        elif not arrival.path.partition("?")[0].endswith(self._paths):
            self.strays.append(arrival)
            await arrival.json({"error": {"message": "not a path of a client"}}, 404)
        else:
            match = _MARK.search(arrival.body)
            mark = match[0].decode() if match else ""
            self.arrivals.append((mark, arrival))
            self.arrived[mark].set()
            await self.scripts.get(mark, self.script)(arrival)


class _Connection(asyncio.Protocol):
    """Reads the requests of one connection and has them answered in their order."""

    transport: asyncio.Transport

    def __init__(self, engine: ScriptedEngine, connections: set[_Connection]) -> None:
        self._engine = engine
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._offer: list[tuple[str, str]] = []  # of the request that is being read
        self._body: list[bytes] = []
        self._waiting: list[tuple[str, Arrival]] = []
        self._answering: tuple[Arrival, asyncio.Task[None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def abort(self) -> asyncio.Task[None] | None:
        """Breaks the connection; returns the script that this cancels."""
        self.transport.abort()
        return self._answering[1] if self._answering else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._waiting.clear()
        if self._answering is not None:
            arrival, task = self._answering
            arrival.gone.set()
            task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            self._decline_upgrade(data[error.args[0] :])
        except httptools.HttpParserError:
            self.transport.close()  # some gateways first ask whether we speak HTTP/2

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1: httptools has stopped after a head with an offer, so it reads the head without it."""
        method, target = self._parser.get_method(), self._target
        self._offer = [header for header in self._headers if header[0] in _OFFER]
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers if name not in _OFFER)
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, lines.encode("latin-1")) + rest)

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if any(header == ("expect", "100-continue") for header in self._headers):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        headers, self._offer = [*self._headers, *self._offer], []
        arrival = Arrival(
            self._target.decode("latin-1"), headers, b"".join(self._body), self.transport, self._writable,
            self._parser.get_http_version(),
        )  # fmt: skip
        self._waiting.append((self._parser.get_method().decode(), arrival))
        if self._answering is None:
            self._next()

    def _next(self) -> None:
        self._answering = None
        if self._waiting and not self.transport.is_closing():
            method, arrival = self._waiting.pop(0)
            self._answering = arrival, asyncio.ensure_future(self._answer(method, arrival))

    async def _answer(self, method: str, arrival: Arrival) -> None:
        try:
            await self._engine.answer(method, arrival)
            await arrival.end()
        except Exception:
            self.transport.abort()  # a script that breaks is an engine that does
            raise
        if arrival.version == "1.0":
            self.transport.close()
        self._next()
