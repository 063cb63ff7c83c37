"""The gateway inside Ray Serve, with simulated engines: readiness, limits, dead replicas, live policy."""

import asyncio
import json
import re
import time
from typing import Any

import aiohttp
import openai
import pytest
from support.session import engine_url, replicas

pytestmark = pytest.mark.ray
HELLO: Any = [{"role": "user", "content": "hello"}]


async def get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json(content_type=None)


async def test_the_models_are_listed(client: openai.AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    assert {"tiny-kimi", "tiny-qwen", "sim"} <= set(names)
    assert (await client.models.retrieve("sim")).id == "sim"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope")


async def test_ready_names_every_pool(gateway_url: str) -> None:
    status, reply = await get(f"{gateway_url}/ready")
    assert (status, reply["ready"]) == (200, True)
    assert reply["pools"]["tiny-kimi/speculative"] == "up"


async def test_a_full_pool_is_ready(gateway_url: str, client: openai.AsyncOpenAI) -> None:
    async with await client.chat.completions.create(model="narrow", messages=HELLO, stream=True) as stream:
        await anext(aiter(stream))  # it holds the only slot
        status, reply = await get(f"{gateway_url}/ready")
    assert (status, [state for pool, state in reply["pools"].items() if pool.startswith("narrow/")]) == (200, ["up"])


async def test_the_door_tells_of_the_whole_cluster(door_url: str, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="sim", messages=HELLO)
    assert (await get(f"{door_url}/health"))[0] == 200
    assert (await get(f"{door_url}/admin/v1/policy"))[1]["digest"]
    async with aiohttp.ClientSession() as session, session.get(f"{door_url}/metrics") as response:
        metrics = await response.text()
    assert re.search(r'^specgate_requests_total\{replica="[^"]+",.*model="sim"', metrics, re.MULTILINE)
    assert re.search(r'^vllm:num_requests_running\{replica="127\.0\.0\.1:\d+",model="tiny-kimi"', metrics, re.MULTILINE)
    board = (await get(f"{door_url}/admin/v1/board"))[1]
    states = {f"{pool['model']}/{pool['pool']}": (pool["state"], pool["engines_up"]) for pool in board["pools"]}
    assert states["sim/speculative"] == states["tiny-kimi/speculative"] == ("up", 1)


async def test_the_data_port_serves_nothing_that_only_operators_need(gateway_url: str) -> None:
    assert (await get(f"{gateway_url}/health"))[0] == 200
    for path in ("/metrics", "/v1/policy", "/admin/v1/policy", "/admin/v1/quarantine", "/admin/v1/snapshot"):
        assert (await get(gateway_url + path))[0] == 404


async def test_an_unknown_path_is_a_404_in_openais_shape(gateway_url: str) -> None:
    status, reply = await get(f"{gateway_url}/v1/nope")
    assert status == 404
    assert set(reply["error"]) == {"message", "type", "param", "code"}


async def test_a_request_id_is_echoed_once(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="sim", messages=HELLO, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers.get_list("x-request-id") == ["mine"]
    made_up = await client.chat.completions.with_raw_response.create(model="sim", messages=HELLO)
    assert len(made_up.headers.get_list("x-request-id")) == 1


async def test_explain_answers_without_an_engine(gateway_url: str) -> None:
    body = {"model": "sim", "messages": HELLO, "enable_speculative": False}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway_url}/v1/route/explain", json=body) as response,
    ):
        reply = await response.json()
    assert (reply["model"], reply["pool"], reply["speculative"]) == ("sim", "standard", False)


@pytest.mark.usefixtures("gateway_url")
async def test_an_engine_cannot_be_reached_past_the_gateway_without_its_key() -> None:
    url = await engine_url("sim", "standard")
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as response:
        assert response.status == 401


async def test_a_full_queue_is_429_with_retry_after(client: openai.AsyncOpenAI) -> None:
    calls = [client.chat.completions.create(model="narrow", messages=HELLO, max_tokens=100) for _ in range(8)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in results if isinstance(each, openai.RateLimitError)]
    assert refused
    assert all(int(each.response.headers["retry-after"]) >= 1 for each in refused)
    assert any(not isinstance(each, BaseException) for each in results)
    assert all(isinstance(each, openai.RateLimitError) or not isinstance(each, BaseException) for each in results)


async def test_killing_an_engine_replica_loses_no_request_that_had_not_begun(client: openai.AsyncOpenAI) -> None:
    (replica,) = replicas("sim", "speculative")
    stream = await client.chat.completions.create(model="sim", messages=HELLO, stream=True)
    assert stream.response.headers["x-specgate-pool"] == "speculative"
    reading = aiter(stream)
    await anext(reading)
    replica.kill()
    with pytest.raises(openai.APIError):
        async for _ in reading:
            pass
    answers = await asyncio.gather(*(client.chat.completions.create(model="sim", messages=HELLO) for _ in range(8)))
    assert all(answer.choices[0].message.content for answer in answers)
    await until_pool_serves(client, "speculative")


async def until_pool_serves(client: openai.AsyncOpenAI, pool: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        raw = await client.chat.completions.with_raw_response.create(model="sim", messages=HELLO)
        if raw.headers["x-specgate-pool"] == pool:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"the pool {pool} did not come back")


async def test_reading_a_stream_yields_whole_frames_and_one_done(gateway_url: str) -> None:
    body = {"model": "sim", "messages": HELLO, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway_url}/v1/chat/completions", json=body) as response,
    ):
        frames = (await response.read()).split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert all(json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2])
