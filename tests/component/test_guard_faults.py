"""The promise over real sockets: whatever the speculative pool does, the client has what the model meant."""

import asyncio
import json
import os
from typing import Any

import jsonschema
import pytest
from support.guard_harness import TOOL_PARAMETERS, TOOLS, calls_of, chunks_of, json_request, read, tools_request
from support.guard_stack import chunks_in, healing, post

from lab.sim import FAULTS, SimSettings
from lab.sim.generation import Generation
from serve.guard.core import Outcome

REQUESTS = int(os.environ.get("SPECGATE_GUARD_REQUESTS", "40"))  # for each of 18 cells
AT_A_TIME = 8
NAMES = {tool["function"]["name"] for tool in TOOLS}
SLOW = {"stall", "slow_start"}
BEFORE_THE_ANSWER = {"http_500"}  # met by another attempt, not by a rerun
RATES = [0.0, 0.1, 0.5]


def faulty(rate: float, grammar: Any) -> SimSettings:
    names = sorted(set(FAULTS) - SLOW)
    rates = {name: rate / len(names) for name in names}
    return SimSettings(model="m", grammar=grammar, num_speculative_tokens=3, faults=rates)


def sound(grammar: Any) -> SimSettings:
    return SimSettings(model="m", grammar=grammar)


async def asked(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a client has of an answer, whole or streamed, in one shape."""
    status, _, answer = await post(url, body)
    assert status == 200, answer
    if body.get("stream"):
        *chunks, last = chunks_in(answer)
        assert last == "[DONE]"
        return read(chunks)
    choice = json.loads(answer)["choices"][0]
    message = choice["message"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
    return {"content": message["content"] or "", "calls": calls, "finish": [choice["finish_reason"]]}


async def all_asked(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def one(body: dict[str, Any]) -> dict[str, Any]:
        async with slots:
            return await asked(url, body)

    return await asyncio.gather(*map(one, bodies))


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes"])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_call_is_broken_lost_or_doubled_and_none_is_rerun_in_vain(
    rate: float, grammar: str, stream: bool
) -> None:
    pool = faulty(rate, grammar)
    bodies = [tools_request(seed, tool_choice="required", model="m", stream=stream) for seed in range(REQUESTS)]
    async with healing(pool) as (stack, judged):
        answers = await all_asked(stack.url, bodies)
    for body, message in zip(bodies, answers, strict=True):
        meant = read(chunks_of(body, sound(grammar)))
        for name, arguments in calls_of(message):
            assert name in NAMES
            jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(arguments)
        assert calls_of(message) == calls_of(meant)
        assert message["content"] == meant["content"]
        assert message["finish"] == ["tool_calls"]
        assert len({call["id"] for call in message["calls"]}) == len(message["calls"])
    faults = [Generation(body, pool).fault for body in bodies]
    met = [fault for fault in faults if fault and (fault not in BEFORE_THE_ANSWER)]
    if not stream:  # an engine that fails before it answers is no broken answer
        met = [fault for fault in met if fault != "error_mid_stream"]
    healed = [each for each in judged if each.final in (Outcome.RERUN, Outcome.RESCUED)]
    assert len(healed) == len(met)
    assert len([each for each in judged if each.final is not None]) == len(bodies)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_strict_json_answer_is_the_document_that_was_meant(stream: bool) -> None:
    bodies = [json_request(seed, model="m", stream=stream) for seed in range(REQUESTS)]
    async with healing(faulty(0.5, "kimi_k2")) as (stack, _):
        answers = await all_asked(stack.url, bodies)
    for body, message in zip(bodies, answers, strict=True):
        jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(json.loads(message["content"]))
        assert message["content"] == read(chunks_of(body, sound("kimi_k2")))["content"]


async def test_behind_our_own_parser_it_reports_what_it_could_not_read_and_no_call_is_lost() -> None:
    pool = SimSettings(model="m", grammar="hermes", parser="specgate", faults={"merged_calls": 1.0})
    bodies = [tools_request(seed, model="m", stream=True) for seed in range(REQUESTS)]
    async with healing(pool) as (stack, _):
        answers = await all_asked(stack.url, bodies)
    for body, message in zip(bodies, answers, strict=True):
        assert calls_of(message) == calls_of(read(chunks_of(body, sound("hermes"))))
