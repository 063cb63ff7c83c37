"""A real engine that is lost in the middle of an answer: another one goes on, and the answer is that of one engine."""

import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.session import ENGINE_KEY, engine_url
from support.stack import Stack, running

from lab.demo import SEARCH, WEATHER
from lab.scripted.arrival import Arrival
from lab.scripted.engine import ScriptedEngine
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool
from serve.telemetry.instruments import Telemetry

pytestmark = pytest.mark.engine
GRAMMARS = {"tiny-kimi": "kimi_k2", "tiny-qwen": "qwen3_coder"}
# The last one is plain: its tokens are made of its text again, and the others' are told.
SAID = ["What is the weather in Osaka?", "weather in Oslo, Rome and 成都", "Tell me about old maps"]


class Lost:
    """An engine in front of a real one, whose connection breaks after so many frames of a chat stream."""

    def __init__(self, url: str) -> None:
        self.after: int | None = None
        self._url = url

    async def __call__(self, arrival: Arrival) -> None:
        headers = {"content-type": "application/json", "authorization": f"Bearer {ENGINE_KEY}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self._url}{arrival.path}", data=arrival.body) as response,
        ):
            assert response.status == 200, await response.text()
            await arrival.begin()
            for number in itertools.count(1):
                frame = await response.content.readuntil(b"\n\n")
                if number == self.after:
                    await arrival.hang_up()
                if not frame:
                    return
                await arrival.write(frame)


@asynccontextmanager
async def lossy(model: str, url: str, telemetry: Telemetry) -> AsyncIterator[tuple[Stack, Lost]]:
    """A gateway whose first pool is lost on demand, in front of one engine."""
    engine, lost = ScriptedEngine(model), Lost(url)
    engine.script = lost
    await engine.listen()
    pools = {
        "first": {"kind": "remote", "url": engine.url, "facts": SPECULATES},
        "second": {"kind": "remote", "url": url, "facts": KNOWN},
    }
    settings = {
        "models": {model: {"family": "sim", "grammar": GRAMMARS[model], "thinking": "kimi" in model, "pools": pools}},
        "policy": {"advisories": NO_ADVISORIES},
        "quarantine": {"reference_share": 0},
    }  # fmt: skip
    routes = {
        (model, "first"): RemotePool(Endpoint(engine.url, None), {}),
        (model, "second"): RemotePool(Endpoint(url, ENGINE_KEY), {}),
    }
    try:
        async with running(settings, {}, routes, telemetry) as stack:
            yield stack, lost
    finally:
        await engine.hang_up()


async def answer(client: openai.AsyncOpenAI, **asked: Any) -> tuple[Any, ...]:
    async with client.chat.completions.stream(temperature=0, max_tokens=150, **asked) as stream:
        final = await stream.get_final_completion()
    (choice,) = final.choices
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
    reasoning = (choice.message.model_extra or {}).get("reasoning")
    return choice.message.content, reasoning, calls, choice.finish_reason


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen"])
async def test_a_greedy_answer_is_the_same_wherever_its_engine_is_lost(model: str) -> None:
    telemetry = Telemetry({})
    async with lossy(model, await engine_url(model, "standard"), telemetry) as (stack, lost):
        for said in SAID:
            asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": said}]}
            if "weather" in said:
                asked["tools"] = [WEATHER, SEARCH]
            lost.after = None
            meant = await answer(stack.client, **asked)
            for lost.after in range(3, 40, 9):
                assert await answer(stack.client, **asked) == meant, (said, lost.after)
    told = telemetry.metrics.exposition().decode()
    assert re.findall(r"specgate_resumes_total\{(.*)\}", told) == [f'model="{model}",outcome="sound",reason="failed"']
