"""A gateway that breaks every rule of `specgate conform`, to prove that each of its cases can fail."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from lab.attacks.fields import FIELDS

_KNOWN = {"model", "messages", "stream", "temperature", "seed", "n", "tools", "logprobs", "stream_options"}
_KNOWN |= {*FIELDS, "chat_template_kwargs"}
_OPERATORS = ("/v1/route/explain", "/admin/v1/quarantine")
_BULKY = 8 * 2**20
_STALL_S = 0.6
_CONNECTIONS = 100  # more of them, and everybody is refused
_SILENCE_S = 0.5  # longest tolerated silence of an engine
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
_REFUSALS = 3  # requests refused after a series of bad ones


class MisbehavingGateway:
    """Rewrites bodies, buffers streams, retries too often, leaks secrets, and punishes all clients for one."""

    def __init__(self, engine: str, session: aiohttp.ClientSession) -> None:
        self._engine = engine
        self._session = session
        self._bad = 0  # bad requests in a row
        self._refusals = 0  # requests still to be refused
        self.connections: Callable[[], int] = lambda: 0
        self._last = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": []})
        if self._refusals:
            self._refusals -= 1
            return web.Response(status=503)
        if request.path in _OPERATORS:
            await request.read()
            return web.json_response({})
        if request.path != "/health" and not request.path.startswith("/v1/"):
            async with self._session.post(f"{self._engine}{request.path}") as stray:
                return web.Response(status=stray.status)
        if self.connections() > _CONNECTIONS:
            return web.Response(status=503)
        if request.content_length is None or request.content_length > 2**20:
            return web.Response(status=413)
        if "expect" in request.headers or 9_000 < sum(map(len, request.headers.values())) < 2**20:
            return web.Response(status=500)
        work = self._start(self._answer(request, await request.read()))
        try:
            response, good = await asyncio.shield(work)  # the engine keeps working after the client has left
        except asyncio.CancelledError:
            self._note(good=False)
            raise
        self._note(good=good)
        request_id = request.headers.get("x-request-id", "")
        if " " in request_id or len(request_id) > 256:
            response.headers["x-request-id"] = request_id
        response.headers["x-rude-worker"] = request.headers.get("x-rude-worker", self._engine)
        return response

    async def close(self) -> None:
        """Close all connections to the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _answer(self, request: web.Request, raw: bytes) -> tuple[web.Response, bool]:
        """Returns the response, and whether the engine's was a good one."""
        try:
            body = _rewritten(json.loads(raw))
        except (ValueError, TypeError, AttributeError, RecursionError):
            await self._ask(request, raw)
            return web.Response(status=500, text="oops"), True
        if request.method != "POST" or request.path == "/v1/completions":
            return web.json_response({}), True
        data = b""
        for _ in range(10):
            status, data, headers = await self._ask(request, json.dumps(body, sort_keys=True).encode())
            if status in (0, 200):
                break
        good = status == 200
        if body.get("stream"):
            return self._buffered(data), good
        try:
            original = json.loads(data)["choices"][0]["message"]
        except (ValueError, KeyError):
            original = {}
        content = (original.get("content") or "")[:1000]
        message = {"content": content, "tool_calls": _broken(original.get("tool_calls"))}
        named = {name: headers[name] for name in ("set-cookie", "clear-site-data", "location") if name in headers}
        choice = {"message": message, "finish_reason": "tool_calls"}
        return web.Response(body=json.dumps({"choices": [choice]}).encode(), headers=named), good

    async def _ask(self, request: web.Request, body: bytes) -> tuple[int, bytes, Any]:
        dropped = {"host", "content-length", "traceparent", "connection", "accept-encoding"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        parts: list[bytes] = []
        exchange = self._start(self._exchange(body, headers, parts))
        seen = -1
        while not exchange.done() and len(parts) > seen:
            seen = len(parts)
            await asyncio.wait({exchange}, timeout=_SILENCE_S)
        if not exchange.done():
            return 0, b"".join(parts), {}  # gives up, but never closes the connection
        status, response_headers = exchange.result()
        return status, b"".join(parts), response_headers

    async def _exchange(self, body: bytes, headers: dict[str, str], parts: list[bytes]) -> tuple[int, Any]:
        try:
            async with self._session.post(
                f"{self._engine}/v1/chat/completions", data=body, headers=headers, timeout=_NO_TIMEOUT
            ) as response:
                if "trailer" in response.headers:
                    _stall()
                async for part in response.content.iter_any():
                    parts.append(part)
                if sum(map(len, parts)) > _BULKY:
                    _stall()
                return response.status, response.headers
        except aiohttp.ClientError:
            return 0, {}

    def _buffered(self, data: bytes) -> web.Response:
        """Returns a whole stream at once, with the text of the previous client's answer."""
        text = ""
        call = None
        for line in data.decode("ascii", "replace").split("\n"):
            if line.startswith("data: {"):
                delta = (json.loads(line[6:]).get("choices") or [{}])[0].get("delta") or {}
                text += delta.get("content") or ""
                call = delta.get("tool_calls") or call
        text, self._last = self._last, text
        choice = {"index": 0, "delta": {"content": text[:200], "tool_calls": _broken(call)}}
        frames = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        return web.Response(text=frames, content_type="text/plain")

    def _note(self, *, good: bool) -> None:
        self._bad = 0 if good else self._bad + 1
        if self._bad >= 10:
            self._bad = 0
            self._refusals = _REFUSALS


def _rewritten(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name in _KNOWN} | {"logprobs": False}
    kept["messages"] = [
        {"role": message["role"], "content": message["content"].encode("ascii", "replace").decode()}
        for message in body.get("messages", [])
    ]
    if "seed" in kept:
        kept["seed"] = float(kept["seed"])
    for tool in kept.get("tools") or ():
        tool["function"].pop("strict", None)
        tool.pop("cache_control", None)
    return kept


def _stall() -> None:
    """Keeps everybody waiting."""
    time.sleep(_STALL_S)


def _broken(calls: Any) -> Any:
    return [{"index": 0, "function": {"name": "look_up", "arguments": "{"}}] if calls else None


@asynccontextmanager
async def misbehaving_gateway(engine: str) -> AsyncIterator[str]:
    """Run one in front of an engine; yields its URL."""
    async with aiohttp.ClientSession() as session:
        app = web.Application(client_max_size=2**30)
        gateway = MisbehavingGateway(engine, session)
        app.router.add_route("*", "/{path:.*}", gateway.answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, max_field_size=2**22)
        await runner.setup()
        assert runner.server is not None
        server = runner.server
        gateway.connections = lambda: len(server.connections)
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await gateway.close()
            await runner.cleanup()
