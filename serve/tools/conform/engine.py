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

from serve.tools.conform import scripts
from serve.tools.conform.arrival import Arrival, Script

_MARK = re.compile(rb"conform-[0-9a-f]{12}")
_PATHS = ("/v1/chat/completions", "/v1/completions")
_QUIET = logging.getLogger("specgate.conform.engine")  # aiohttp tells of every request that it could not read
_QUIET.setLevel(logging.CRITICAL)
_ROOM = 64 * 2**20  # bytes of a body; of a header a part of it


class ScriptedEngine:
    """An OpenAI-compatible server on one port.

    Args:
        model: The one model that it lists.
        host: Where it listens.
        port: 0 takes a free one.

    Attributes:
        scripts: What to do for the request with a mark; without one, a short answer.
        arrivals: Every completion request, in order, by mark ("" without one).
        arrived: Set by the first request with a mark.
    """

    def __init__(self, model: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._model, self._host, self.port = model, host, port
        self.scripts: dict[str, Script] = {}
        self.arrivals: list[tuple[str, Arrival]] = []
        self.arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        app = web.Application(client_max_size=_ROOM)
        for path in _PATHS:
            app.router.add_post(path, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/{path:.*}", self._healthy)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, logger=_QUIET, max_field_size=2**20, max_line_size=2**20
        )

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        return f"http://{self._host}:{self.port}"

    def of(self, mark: str) -> list[Arrival]:
        """The requests with a mark, in the order of their arrival."""
        return [arrival for known, arrival in self.arrivals if known == mark]

    def forget(self) -> None:
        """Drop what the case before left."""
        self.scripts.clear()
        self.arrivals.clear()
        self.arrived.clear()

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        await self.listen()

    async def listen(self) -> None:
        """Accept connections, again after `hang_up`."""
        await web.TCPSite(self._runner, self._host, self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def hang_up(self) -> None:
        """Stop listening and drop every connection, as a process does that dies."""
        for site in list(self._runner.sites):
            await site.stop()
        server = self._runner.server
        assert server is not None
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        """End."""
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        found = _MARK.search(body)
        mark = found[0].decode() if found else ""
        headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in request.raw_headers]
        arrival = Arrival(request.path_qs, headers, body)
        self.arrivals.append((mark, arrival))
        self.arrived[mark].set()
        try:
            return await self.scripts.get(mark, scripts.plain)(request, arrival)
        except (asyncio.CancelledError, ClientConnectionResetError):
            arrival.gone.set()
            raise

    async def _models(self, _: web.Request) -> web.Response:
        listed = {"id": self._model, "object": "model", "created": 1, "owned_by": "conform"}
        return web.json_response({"object": "list", "data": [listed]})

    async def _healthy(self, _: web.Request) -> web.Response:
        """Gateways ask for health, load and metrics under many names."""
        return web.json_response({"status": "ok"})


async def crash(request: web.Request, _: Arrival) -> web.StreamResponse:
    """Break the connection without a word: all that is left of an engine that crashed."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    request.transport.abort()
    await asyncio.Event().wait()  # until cancelled: there is nobody to return a response to
    raise AssertionError
