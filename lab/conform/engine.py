"""The scripted engine behind the gateway under test: every request is answered the way its case wants it.

The case and the engine share a process, so a case hands its script over as a function. A mark in the request's first
message says which script is meant: headers and other fields may not survive the way through a gateway.
"""

import asyncio
import logging
import re
import socket
import struct
from collections import defaultdict

from aiohttp import ClientConnectionResetError, web

from lab.conform import scripts
from lab.conform.arrival import Arrival, Script

_MARK = re.compile(rb"conform-[0-9a-f]{12}")
_PATHS = ("/v1/chat/completions", "/v1/completions")
_QUIET = logging.getLogger("specgate.conform.engine")  # aiohttp logs every request that it cannot parse
_QUIET.setLevel(logging.CRITICAL)
_MAX_BODY_BYTES = 64 * 2**20


class ScriptedEngine:
    """An OpenAI-compatible server on one port.

    Args:
        model: The only model that it lists.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.

    Attributes:
        scripts: Script by mark; requests without one get a short answer.
        arrivals: (mark, request) of every completion request in order; the mark is "" if there is none.
        arrived: Event by mark, set by the first request with it.
        strays: Every POST to a path that is none of a client's, in order.
    """

    def __init__(self, model: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._model = model
        self._host = host
        self.port = port
        self.scripts: dict[str, Script] = {}
        self.arrivals: list[tuple[str, Arrival]] = []
        self.arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.strays: list[Arrival] = []
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for path in _PATHS:
            app.router.add_post(path, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/{path:.*}", self._healthy)
        app.router.add_post("/{path:.*}", self._stray)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, logger=_QUIET, max_field_size=2**20, max_line_size=2**20
        )

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

    async def start(self) -> None:
        """Start to listen."""
        await self._runner.setup()
        await self.listen()

    async def listen(self) -> None:
        """Accept connections, also after `hang_up`."""
        await web.TCPSite(self._runner, self._host, self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def hang_up(self) -> None:
        """Stop listening and drop every connection, like a process that dies."""
        for site in list(self._runner.sites):
            await site.stop()
        server = self._runner.server
        assert server is not None
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        """Stop for good."""
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        match = _MARK.search(body)
        mark = match[0].decode() if match else ""
        headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in request.raw_headers]
        arrival = Arrival(request.path_qs, headers, body)
        self.arrivals.append((mark, arrival))
        self.arrived[mark].set()
        try:
            return await self.scripts.get(mark, scripts.plain)(request, arrival)
        except (asyncio.CancelledError, ClientConnectionResetError):
            arrival.gone.set()
            raise

    async def _stray(self, request: web.Request) -> web.Response:
        """Refuse what no client should ask of an engine, and remember it."""
        self.strays.append(Arrival(request.path_qs, [], b""))
        return web.Response(status=404)

    async def _models(self, _: web.Request) -> web.Response:
        listed = {"id": self._model, "object": "model", "created": 1, "owned_by": "conform"}
        return web.json_response({"object": "list", "data": [listed]})

    async def _healthy(self, _: web.Request) -> web.Response:
        """Answer any GET: gateways ask for health, load and metrics under many names."""
        return web.json_response({"status": "ok"})


async def crash(request: web.Request, _: Arrival) -> web.StreamResponse:
    """Reset the connection without a response, like an engine that crashes."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    request.transport.abort()
    await asyncio.Event().wait()  # until cancelled, because nobody is left to respond to
    raise AssertionError
