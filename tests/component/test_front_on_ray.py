"""Our listener where Ray Serve starts it: by the very function that a replica calls, without a cluster around it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn
from ray.serve._private.http_util import start_asgi_http_server
from ray.serve.config import HTTPOptions

from serve.http1.asgi import DIRECT
from serve.http1.server import serve_directly
from serve.launch.ports import free_port


async def say(what: bytes, send: Any, release: asyncio.Event | None = None) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": what, "more_body": True})
    if release is not None:
        await release.wait()
    await send({"type": "http.response.body", "body": b"."})


async def serves_app(scope: Any, _: Any, send: Any) -> None:
    await say(scope["path"].encode(), send)


@asynccontextmanager
async def replica(
    release: asyncio.Event | None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, Any, Any]]:
    """(URL, Ray's server task, its server) of a replica's listener with one hot route."""

    async def hot(scope: Any, _: Any, send: Any) -> None:
        assert DIRECT in scope["extensions"]
        await say(b"hot", send, release)

    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", uvicorn.config.HTTP_PROTOCOLS["auto"])
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "level", logging.CRITICAL)
    serve_directly({"/hot": hot})
    port = free_port()
    options = HTTPOptions(host="127.0.0.1", port=port)
    task, server = await start_asgi_http_server(serves_app, options, event_loop=asyncio.get_running_loop())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{port}", task, server
    server.should_exit = True
    await asyncio.wait_for(task, 30)


async def test_a_replicas_listener_answers_hot_routes_itself_and_hands_the_rest_to_ray_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with replica(None, monkeypatch) as (url, *_), aiohttp.ClientSession() as session:
        for method, path, answer in (
            ("POST", "/hot", "hot."),
            ("GET", "/hot", "/hot."),
            ("GET", "/-/healthz", "/-/healthz."),
            ("POST", "/hot", "hot."),
        ):
            async with session.request(method, url + path) as response:
                assert await response.text() == answer
                # Ray Serve's middleware names the requests that it gets to see.
                assert ("x-request-id" in response.headers) == (answer != "hot.")


async def test_a_replica_that_ends_drains_its_streams_and_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    async with (
        replica(release, monkeypatch) as (url, task, server),
        aiohttp.ClientSession() as session,
        session.post(f"{url}/hot") as response,
    ):
        assert await response.content.readany() == b"hot"
        server.should_exit = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.5)
        with pytest.raises(aiohttp.ClientConnectorError):
            await aiohttp.ClientSession.get(session, f"{url}/hot")
        release.set()
        assert await response.read() == b"."
        await asyncio.wait_for(task, 30)
