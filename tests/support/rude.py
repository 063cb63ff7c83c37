"""A gateway that breaks every rule of `specgate conform`, so that each of its cases can be seen to fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

_KNOWN = {"model", "messages", "stream", "temperature", "seed", "n", "tools", "logprobs", "stream_options"}
_SILENCE_S = 0.5  # of an engine, that is borne
_FOR_EVER = aiohttp.ClientTimeout(total=None)
_REFUSED = 3  # requests, after so many bad ones in a row


class RudeGateway:
    """Writes bodies anew, gathers streams, retries for ever, tells secrets, punishes everybody for one."""

    def __init__(self, engine: str, session: aiohttp.ClientSession) -> None:
        self._engine, self._session = engine, session
        self._bad = self._sulks = 0
        self._last = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": []})
        if self._sulks:
            self._sulks -= 1
            return web.Response(status=503)
        if request.content_length is None or request.content_length > 2**20:
            return web.Response(status=413)
        if "expect" in request.headers or 9_000 < sum(map(len, request.headers.values())) < 2**20:
            return web.Response(status=500)
        work = self._start(self._answer(request, await request.read()))
        try:
            told, good = await asyncio.shield(work)  # the engine works on when the client has left
        except asyncio.CancelledError:
            self._note(good=False)
            raise
        self._note(good=good)
        told.headers["x-rude-worker"] = request.headers.get("x-rude-worker", self._engine)
        return told

    async def close(self) -> None:
        """Let go of the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _answer(self, request: web.Request, raw: bytes) -> tuple[web.Response, bool]:
        """The answer, and whether the engine was good."""
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
            return self._gathered(data), good
        try:
            told = json.loads(data)["choices"][0]["message"]
        except (ValueError, KeyError):
            told = {}
        message = {"content": (told.get("content") or "")[:1000], "tool_calls": _worse(told.get("tool_calls"))}
        cookies = {"set-cookie": headers["set-cookie"]} if "set-cookie" in headers else {}
        choice = {"message": message, "finish_reason": "tool_calls"}
        return web.Response(body=json.dumps({"choices": [choice]}).encode(), headers=cookies), good

    async def _ask(self, request: web.Request, body: bytes) -> tuple[int, bytes, Any]:
        dropped = {"host", "content-length", "x-request-id", "traceparent", "connection", "accept-encoding"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        parts: list[bytes] = []
        exchange = self._start(self._exchange(body, headers, parts))
        seen = -1
        while not exchange.done() and len(parts) > seen:
            seen = len(parts)
            await asyncio.wait({exchange}, timeout=_SILENCE_S)
        if not exchange.done():
            return 0, b"".join(parts), {}  # given up, and never let go of
        status, told = exchange.result()
        return status, b"".join(parts), told

    async def _exchange(self, body: bytes, headers: dict[str, str], parts: list[bytes]) -> tuple[int, Any]:
        try:
            async with self._session.post(
                f"{self._engine}/v1/chat/completions", data=body, headers=headers, timeout=_FOR_EVER
            ) as response:
                async for part in response.content.iter_any():
                    parts.append(part)
                return response.status, response.headers
        except aiohttp.ClientError:
            return 0, {}

    def _gathered(self, data: bytes) -> web.Response:
        """All of a stream at once, in the words of whoever was before."""
        said, call = "", None
        for line in data.decode("ascii", "replace").split("\n"):
            if line.startswith("data: {"):
                delta = (json.loads(line[6:]).get("choices") or [{}])[0].get("delta") or {}
                said += delta.get("content") or ""
                call = delta.get("tool_calls") or call
        said, self._last = self._last, said
        choice = {"index": 0, "delta": {"content": said[:200], "tool_calls": _worse(call)}}
        frames = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        return web.Response(text=frames, content_type="text/plain")

    def _note(self, *, good: bool) -> None:
        self._bad = 0 if good else self._bad + 1
        if self._bad >= 10:
            self._bad, self._sulks = 0, _REFUSED


def _rewritten(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name in _KNOWN} | {"logprobs": False}
    kept["messages"] = [
        {"role": each["role"], "content": each["content"].encode("ascii", "replace").decode()}
        for each in body.get("messages", [])
    ]
    if "seed" in kept:
        kept["seed"] = float(kept["seed"])
    for tool in kept.get("tools") or ():
        tool["function"].pop("strict", None)
        tool.pop("cache_control", None)
    return kept


def _worse(calls: Any) -> Any:
    return [{"index": 0, "function": {"name": "look_up", "arguments": "{"}}] if calls else None


@asynccontextmanager
async def rude_gateway(engine: str) -> AsyncIterator[str]:
    """Run one in front of an engine; yields its URL."""
    async with aiohttp.ClientSession() as session:
        app = web.Application(client_max_size=2**30)
        gateway = RudeGateway(engine, session)
        app.router.add_route("*", "/{path:.*}", gateway.answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, max_field_size=2**22)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await gateway.close()
            await runner.cleanup()
