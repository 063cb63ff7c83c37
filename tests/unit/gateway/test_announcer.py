"""A replica tells the door again and again where its admin routes are, and survives a door that is away."""

import asyncio
import logging

import aiohttp
import fastapi
import pytest
from ray.serve.exceptions import RayServeException
from support.clock import until

from serve.gateway.announcer import Announcer, listed_routes


class Door:
    """The door's handle.

    Attributes:
        told: What was announced: replica, URL, key.
        away: Calls to it fail.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.calls = 0
        self.away = False
        self.announce = self

    async def remote(self, *announced: str) -> None:
        self.calls += 1
        if self.away:
            raise RayServeException("away")
        self.told.append(announced)  # type: ignore[arg-type]


def served() -> fastapi.FastAPI:
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/metrics", lambda: "figures", methods=["GET"])
    return app


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setenv("SPECGATE_ENGINE_HOST", "127.0.0.1")
    monkeypatch.setattr("serve.gateway.announcer.PERIOD_S", 0.005)
    return Door()


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_whoever_has_the_announced_key_gets_the_admin_routes_and_nobody_else(door: Door) -> None:
    running = asyncio.create_task(Announcer(door, "replica-1", served()).run())  # type: ignore[arg-type]
    await until(lambda: door.told)
    replica, url, key = door.told[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"}) as answer:
            assert (answer.status, await answer.json()) == (200, "figures")
        async with session.get(f"{url}/metrics") as refused:
            assert refused.status in (401, 403, 404)
    assert replica == "replica-1"
    await stop(running)


async def test_a_door_that_is_away_is_logged_once_and_told_again_when_it_is_back(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.away = True
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(Announcer(door, "r", served()).run())  # type: ignore[arg-type]
        await until(lambda: door.calls > 3)
    assert caplog.text.count("can't be reached") == 1
    door.away = False
    await until(lambda: door.told)
    await stop(running)


def test_routes_are_listed_by_method_and_path() -> None:
    assert ("GET", "/metrics") in listed_routes(served())
