"""The gateway over real HTTP without Ray: simulated engines or hand-written ones behind `RemoteRoute`s."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import fastapi
import openai

from serve.config.gateway import GatewayConfig
from serve.engine.listener import AsgiApp, Listener
from serve.gateway.pipeline import Gateway
from serve.guard.attempt_result import ResultSink, ignore
from serve.http1.server import protocol
from serve.live_policy import LivePolicy, compile_for
from serve.proxy.upstream import Upstream
from serve.routing.endpoint import Endpoint
from serve.routing.pool import RemoteRoute, Route
from serve.telemetry.instruments import Telemetry


@dataclass
class Stack:
    """A running gateway."""

    url: str
    gateway: Gateway
    client: openai.AsyncOpenAI


@asynccontextmanager
async def listening(app: AsgiApp, hot: Mapping[str, AsgiApp] | None = None) -> AsyncIterator[Endpoint]:
    """Serve an ASGI app on a free loopback port; with `hot` routes, by the gateway's own listener."""
    listener = Listener("127.0.0.1")
    await listener.start(app, "auto" if hot is None else protocol(hot))
    try:
        yield Endpoint(f"http://127.0.0.1:{listener.port}", None)
    finally:
        await listener.stop()


@asynccontextmanager
async def running(
    config: Mapping[str, Any],
    apps: Mapping[tuple[str, str], AsgiApp],
    routes: Mapping[tuple[str, str], Route] | None = None,
    telemetry: Telemetry | None = None,
    sink: ResultSink = ignore,
) -> AsyncIterator[Stack]:
    """A gateway in front of one app per (model, pool); `routes` replaces some of them."""
    parsed = GatewayConfig.parse(config)
    async with AsyncExitStack() as held:
        all_routes: dict[tuple[str, str], Route] = {}
        for key, app in apps.items():
            all_routes[key] = RemoteRoute(await held.enter_async_context(listening(app)), {})
        all_routes |= routes or {}
        upstream = Upstream(parsed.limits)
        held.push_async_callback(upstream.close)
        gateway = Gateway(
            parsed, LivePolicy(compile_for(parsed)), all_routes, upstream, telemetry or Telemetry({}), sink
        )
        paths = ("/v1/chat/completions", "/v1/completions")
        front = await held.enter_async_context(listening(fastapi.FastAPI(), dict.fromkeys(paths, gateway)))
        client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)
        held.push_async_callback(client.close)
        yield Stack(front.url, gateway, client)
