"""Engines are killed, drained, hang and come back under a load of long answers: no answer of two pools is lost."""

import asyncio
import itertools
import json
from random import Random
from typing import Any

from support.guard_harness import TOOL_PARAMETERS
from support.tokens import QWEN_MARKERS, asked, qwen_call, resuming

from lab.conform.apis.turn import End
from lab.scripted.tokens import Strike, TokenModel
from serve.telemetry.instruments import Telemetry

ANSWERS = 54
AT_ONCE = 6
APART = 300  # chunks of one engine between two strikes at it
STRIKES: tuple[Strike | None, ...] = ("die", "abort", None, "lost", "hang", "die", "abort", None, "lost")
CITIES = [f"city {n} 成都 🙂" for n in range(6)]
PROSE = " ".join(f"Sentence {n} is about 成都, and it is long." for n in range(6))
OBJECT = json.dumps({"city": "Oslo", "days": 3, "notes": [f"note {n}" for n in range(20)]})
SAID = {
    "text": PROSE,
    "calls": "I will look.\n\n" + "\n".join(qwen_call("plan_trip", city=city, days=2) for city in CITIES),
    "json": OBJECT,
}


SCHEMA = {"type": "object", "properties": TOOL_PARAMETERS["properties"]}
AS_JSON: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}},
    "messages": {},
    "responses": {"text": {"format": {"type": "json_schema", "name": "trip", "schema": SCHEMA}}},
}


async def strike(engines: list[TokenModel], done: asyncio.Event) -> None:
    """Strikes an engine whenever it has written so much."""
    due = [APART] * len(engines)
    for kind in itertools.cycle(STRIKES):
        while not (ready := [n for n, engine in enumerate(engines) if engine.written >= due[n]]):
            if done.is_set():
                return
            await asyncio.sleep(0)
        engine = engines[ready[0]]
        due[ready[0]] = engine.written + APART
        engine.drains = kind is None
        engine.strikes.append(kind or "abort")
        for _ in range(50):
            await asyncio.sleep(0)
        engine.drains = False


async def test_no_answer_is_lost() -> None:
    answers = {f"{kind} {number}": text for kind, text in SAID.items() for number in range(ANSWERS)}
    engines = [TokenModel(answers, "qwen3_coder", QWEN_MARKERS, per_chunk=3) for _ in range(2)]
    engines[0].hits = engines[1].hits
    telemetry = Telemetry({})
    limits = {"stream_idle_timeout_s": 2}
    async with resuming(*engines, guard={"reruns": 3}, telemetry=telemetry, limits=limits) as (stack, _):
        kinds = itertools.product(AS_JSON, SAID, (True, True, False))
        wanted = [each for each, _ in zip(itertools.cycle(kinds), range(ANSWERS), strict=False)]
        Random(32).shuffle(wanted)
        done, room = asyncio.Event(), asyncio.Semaphore(AT_ONCE)

        async def one(number: int, api: str, kind: str, stream: bool) -> None:
            more = {} if kind == "calls" else {"tools": None, **(AS_JSON[api] if kind == "json" else {})}
            async with room:
                turn = await asked(stack.url, api, f"{kind} {number}", stream=stream, **more)
            assert (turn.end, turn.faults) == (End.COMPLETE, []), (api, kind, stream, turn)
            if kind == "calls":
                assert [json.loads(call.arguments)["city"] for call in turn.calls] == CITIES
            else:
                assert turn.text.strip() == SAID[kind]

        striking = asyncio.create_task(strike(engines, done))
        await asyncio.gather(*[one(number, *each) for number, each in enumerate(wanted)])
        done.set()
        await striking
    struck = sum(len(engine.strikes) for engine in engines)
    told = telemetry.metrics.exposition().decode()
    assert struck >= len(STRIKES) - 2
    assert 'outcome="sound",reason="failed"' in told
    assert 'outcome="error"' not in told
