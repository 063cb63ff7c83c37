"""Quarantine in a Ray cluster: the shared detector dies, the gateway dies, and what was out stays out."""

import asyncio
from typing import Any

import aiohttp
import pytest
from support.session import processes

pytestmark = pytest.mark.ray
# A class that no other test asks for.
CELL = {"model": "sim", "pool": "speculative", "request_class": "json_object+thinking"}
REQUEST = {
    "model": "sim",
    "messages": [{"role": "user", "content": "JSON"}],
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": True},
}


async def ask(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request("GET" if body is None else "POST", url + path, json=body) as response,
    ):
        return response.status, await response.json(content_type=None)


async def order(url: str, action: str, **change: str) -> int:
    return (await ask(url, "/admin/v1/quarantine", {**CELL, "action": action, "reason": "a test", **change}))[0]


async def is_out(url: str) -> bool:
    """As the gateway decides."""
    return (await ask(url, "/v1/route/explain", REQUEST))[1].get("pool") == "standard"


async def eventually(wanted: Any, doing: str) -> None:
    for _ in range(240):
        try:
            if await wanted():
                return
        except (aiohttp.ClientError, ValueError):
            pass  # the gateway is on its way back
        await asyncio.sleep(0.25)
    raise AssertionError(f"in vain: {doing}")


async def test_what_is_out_stays_out_when_the_detector_or_the_gateway_dies(gateway_url: str, door_url: str) -> None:
    assert not await is_out(gateway_url)
    assert await order(door_url, "quarantine") == 200
    assert await is_out(gateway_url)

    (actor,) = processes("ray::QuarantineActor")
    actor.kill()

    async def back_with_another_process() -> bool:
        another = await order(door_url, "pin", request_class="json_schema+thinking") == 200
        return another and [each.pid for each in processes("ray::QuarantineActor")] != [actor.pid]

    await eventually(back_with_another_process, "reach the detector that Ray restarted")
    assert await is_out(gateway_url)

    (gateway,) = processes("ServeReplica:specgate:Gateway")
    gateway.kill()

    async def restarted() -> bool:
        running = processes("ServeReplica:specgate:Gateway")
        return bool(running) and gateway.pid not in [each.pid for each in running] and await is_out(gateway_url)

    await eventually(restarted, "find the cell out in a gateway replica that never saw the order")
    assert await order(door_url, "lift") == 200
    assert not await is_out(gateway_url)
