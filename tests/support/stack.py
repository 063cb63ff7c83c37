"""The gateway over real HTTP without Ray, with simulated or hand-written engines as remote pools."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import fastapi
import openai

from policies import Policy
from serve.access.principal import Authenticate, everybody
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.gateway.pipeline import Gateway, hot_routes
from serve.guard.attempt_result import ResultSink
from serve.http1.allowance import Allowance
from serve.http1.listener import AsgiApp, Listener
from serve.http1.server import protocol_factory
from serve.limits.accounts import NULL_ACCOUNTS, AnyAccounts
from serve.load.live_load import LiveLoad, NullLoad
from serve.proxy.upstream import Upstream
from serve.quarantine.live_policy import LivePolicy
from serve.routing.pool import Endpoint, Pool
from serve.routing.remote_pool import RemotePool
from serve.telemetry.instruments import Telemetry


@dataclass
class Stack:
    """A running gateway."""

    url: str
    gateway: Gateway
    client: openai.AsyncOpenAI
    allowance: Allowance


@asynccontextmanager
async def listening(
    app: AsgiApp, hot: Mapping[str, AsgiApp] | None = None, allowance: Allowance | None = None
) -> AsyncIterator[Endpoint]:
    """Serve an ASGI app on a free loopback port; with `hot` routes, by the gateway's own listener."""
    listener = Listener("127.0.0.1")
    await listener.start(app, "auto" if hot is None else protocol_factory(hot, allowance))
    try:
        yield Endpoint(f"http://127.0.0.1:{listener.port}", None)
    finally:
        await listener.stop()


@asynccontextmanager
async def running(
    config: Mapping[str, Any],
    apps: Mapping[tuple[str, str], AsgiApp],
    pools: Mapping[tuple[str, str], Pool] | None = None,
    telemetry: Telemetry | None = None,
    sink: ResultSink = lambda _: None,
    accounts: AnyAccounts = NULL_ACCOUNTS,
    authenticate: Authenticate = everybody,
    live: Callable[[Policy], LivePolicy] = LivePolicy,
) -> AsyncIterator[Stack]:
    """Runs a gateway in front of one app per (model, pool).

    Args:
        config: The gateway's configuration.
        apps: The engines.
        pools: Replace some of the engines.
        telemetry: Spans and metrics; without exporters if not given.
        sink: Gets what the guard finds.
        accounts: Limits and usage.
        authenticate: Returns the principal of a request.
        live: Makes the policy in force of the compiled one.
    """
    parsed = GatewayConfig.parse(config)
    async with AsyncExitStack() as resources:
        all_pools: dict[tuple[str, str], Pool] = {}
        for key, app in apps.items():
            all_pools[key] = RemotePool(await resources.enter_async_context(listening(app)), {})
        all_pools |= pools or {}
        upstream = Upstream(parsed.limits)
        resources.push_async_callback(upstream.close)
        policy = compile_for(parsed)
        load = LiveLoad(parsed, policy) if parsed.policy.load != "off" else NullLoad()
        telemetry = telemetry or Telemetry({}, config=parsed.telemetry)
        gateway = Gateway(parsed, live(policy), all_pools, upstream, telemetry, sink, load, authenticate, accounts)
        limits = parsed.limits
        allowance = Allowance(limits.max_connections, limits.max_buffered_bytes, limits.retry_after_s)
        app = listening(fastapi.FastAPI(), hot_routes(gateway), allowance)
        front = await resources.enter_async_context(app)
        client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)
        resources.push_async_callback(client.close)
        yield Stack(front.url, gateway, client, allowance)
