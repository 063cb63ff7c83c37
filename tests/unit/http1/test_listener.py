"""What a listener does to the process in which it runs, and what it lets through."""

import asyncio
import logging
from logging.handlers import MemoryHandler
from typing import Any

import fastapi
import pytest
from support.stack import listening

from serve.engine.replica import ENGINE_ROUTES
from serve.http1.asgi import AsgiMessage, Receive, Scope, Send
from serve.http1.listener import AllowedRoutes, Listener

KEY = (b"authorization", b"Bearer secret")


async def test_handlers_of_the_log_stay_open_when_a_listener_starts() -> None:
    written = logging.NullHandler()
    handler = MemoryHandler(1000, target=written)  # as Ray Serve has one; closing it takes its target away
    async with listening(fastapi.FastAPI()):
        assert handler.target is written


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")],
)
async def test_all_addresses_are_those_of_ipv6_and_of_ipv4(host: str, reached: str) -> None:
    listener = Listener(host)
    await listener.start(fastapi.FastAPI())
    _, writer = await asyncio.open_connection(reached, listener.port)
    writer.close()
    await listener.stop()


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the engine"})


async def status_of(method: str, path: str, *headers: tuple[bytes, bytes]) -> int:
    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    await AllowedRoutes(engine, "secret", ENGINE_ROUTES)(scope, receive, send)
    return int(sent[0]["status"])


async def test_the_gateways_routes_pass_with_the_key() -> None:
    assert await status_of("POST", "/v1/chat/completions", KEY) == 200
    assert await status_of("GET", "/health", KEY) == 200


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", b"secret"),),
        (KEY, (b"authorization", b"Bearer other")),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations", "/metrics", "/health"])
async def test_nothing_passes_without_the_key(path: str, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert await status_of("POST", path, *headers) == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/invocations"),
        ("POST", "/scale_elastic_ep"),
        ("POST", "/generative_scoring"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/load"),
        ("POST", "//v1/chat/completions"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/v1/../invocations"),
        ("PUT", "/v1/chat/completions"),
    ],
)
async def test_no_other_route_is_reached_even_with_the_key(method: str, path: str) -> None:
    assert await status_of(method, path, KEY) == 404


async def test_the_apps_lifespan_passes_and_a_websocket_does_not() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> AsgiMessage:
        return {"type": "websocket.connect"}

    async def send(message: AsgiMessage) -> None:
        seen.append(message["type"])

    routes = AllowedRoutes(app, "secret", ENGINE_ROUTES)
    await routes({"type": "lifespan"}, receive, send)
    await routes({"type": "websocket", "headers": [KEY]}, receive, send)
    assert seen == ["lifespan", "websocket.close"]
