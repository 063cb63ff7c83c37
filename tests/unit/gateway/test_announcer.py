"""A replica tells the admin API again and again where its admin routes are, and survives an admin API that is away."""

import asyncio
import logging

import aiohttp
import fastapi
import pytest
from ray.serve.exceptions import RayServeException
from support.clock import until

from serve.gateway.announcer import announce, listed_routes
from serve.shared.ray_link import HandleLink


class AdminApi:
    """The admin API's handle.

    Attributes:
        told: What was announced: replica, URL, key.
        away: Calls to it fail.
    """

    def __init__(self) -> None:
        self.reply: list[tuple[str, str, str]] = []
        self.calls = 0
        self.away = False
        self.announce = self

    async def remote(self, *announced: str) -> None:
        self.calls += 1
        if self.away:
            raise RayServeException("away")
        self.reply.append(announced)  # type: ignore[arg-type]


def served() -> fastapi.FastAPI:
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/metrics", lambda: "figures", methods=["GET"])
    return app


@pytest.fixture
def admin_api(monkeypatch: pytest.MonkeyPatch) -> AdminApi:
    monkeypatch.setenv("SPECGATE_ENGINE_HOST", "127.0.0.1")
    monkeypatch.setattr("serve.gateway.announcer.PERIOD_S", 0.005)
    return AdminApi()


def link_to(admin_api: AdminApi) -> HandleLink:
    return HandleLink(admin_api)  # type: ignore[arg-type]


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_whoever_has_the_announced_key_gets_the_admin_routes_and_nobody_else(admin_api: AdminApi) -> None:
    running = asyncio.create_task(announce(link_to(admin_api), "replica-1", served()))
    await until(lambda: admin_api.reply)
    replica, url, key = admin_api.reply[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"}) as answer:
            assert (answer.status, await answer.json()) == (200, "figures")
        async with session.get(f"{url}/metrics") as refused:
            assert refused.status in (401, 403, 404)
    assert replica == "replica-1"
    await stop(running)


async def test_a_door_that_is_away_is_logged_once_and_told_again_when_it_is_back(
    admin_api: AdminApi, caplog: pytest.LogCaptureFixture
) -> None:
    admin_api.away = True
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(announce(link_to(admin_api), "r", served()))
        await until(lambda: admin_api.calls > 3)
    assert caplog.text.count("can't be reached") == 1
    admin_api.away = False
    await until(lambda: admin_api.reply)
    await stop(running)


def test_routes_are_listed_by_method_and_path() -> None:
    assert ("GET", "/metrics") in listed_routes(served())
