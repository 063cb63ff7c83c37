"""The simulated engine's HTTP interface: a plain ASGI app with vLLM's routes, streams, cancellation and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lab.sim import wire
from lab.sim.completion import Completion
from lab.sim.pace import pace_of
from lab.sim.response import SimResponse, read_body, send_json, send_text
from lab.sim.settings import SimSettings
from lab.sim.stats import SimStats
from serve.errors import GatewayError, InvalidRequestError, ModelNotFoundError
from serve.http1.asgi import AsgiApp, Receive, Scope, Send


def build_sim_app(settings: SimSettings, api_key: str | None = None) -> AsgiApp:
    """Returns an ASGI app that behaves like vLLM's OpenAI server.

    Args:
        settings: The engine to simulate.
        api_key: If given, the bearer token that `/v1` requests must carry.
    """
    return SimApp(settings, api_key)


class SimApp:
    """The app behind `build_sim_app`: dispatches requests by a table of routes."""

    def __init__(self, settings: SimSettings, api_key: str | None) -> None:
        self._settings = settings
        self._api_key = api_key
        self._pace = pace_of(settings)
        self._stats = SimStats(self._pace.kv, drafts=settings.num_speculative_tokens > 0)
        self._ready_at = time.monotonic() + settings.ready_after_s
        self._routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/sim/stats"): self._sim_stats,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._text,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await send_json(send, 404, wire.error_body("Not Found", "NotFoundError", 404))
        elif not self._is_authorized(scope):
            await send_json(send, 401, wire.error_body("Unauthorized", "AuthenticationError", 401))
        else:
            await route(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        if self._api_key is None or not scope["path"].startswith("/v1"):
            return True
        return dict(scope["headers"]).get(b"authorization") == f"Bearer {self._api_key}".encode()

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_text(send, 200 if time.monotonic() >= self._ready_at else 503, "")

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = {"id": self._settings.model, "object": "model", "created": 0, "owned_by": "specgate-sim"}
        await send_json(send, 200, {"object": "list", "data": [model]})

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_text(send, 200, self._stats.exposition(self._settings.model))

    async def _sim_stats(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, self._stats.as_dict())

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._complete(receive, send, chat=True)

    async def _text(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._complete(receive, send, chat=False)

    async def _complete(self, receive: Receive, send: Send, *, chat: bool) -> None:
        try:
            body = _parsed(await read_body(receive), self._settings, chat=chat)
            completion = Completion(body, self._settings, self._stats, self._pace, chat=chat)
        except GatewayError as error:
            await send_json(
                send, error.status, wire.error_body(error.message, "BadRequestError", error.status, error.param)
            )
            return
        async with SimResponse(receive, send) as response:
            await completion.run(response)


def _parsed(raw: bytes, settings: SimSettings, *, chat: bool) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise InvalidRequestError(f"The body is not JSON: {error}") from error
    required = "messages" if chat else "prompt"
    if not isinstance(body, dict) or required not in body:
        raise InvalidRequestError(f"The field {required!r} is required.", param=required)
    if body.get("model", settings.model) != settings.model:
        raise ModelNotFoundError.unknown(body["model"], [settings.model])
    for message in body.get("messages", ()):
        _check_history(message)
    return body


def _check_history(message: Mapping[str, Any]) -> None:
    """Reject arguments of earlier calls that are not JSON, as vLLM does."""
    for call in message.get("tool_calls") or ():
        try:
            json.loads(call["function"].get("arguments") or "{}")
        except ValueError as error:
            raise InvalidRequestError(
                f"Arguments of an earlier tool call are not JSON: {error}", param="messages"
            ) from error


async def _run_lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
