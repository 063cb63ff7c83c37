"""Engines that send odd or endless answers: the client has a valid answer or an explicit error, and others go on."""

import json
from typing import Any

import pytest
from support.engines import answering, chunk, frame, streaming
from support.guard_harness import TOOLS
from support.guard_stack import chunks_in, config, post
from support.stack import running

DONE = b"data: [DONE]\n\n"
HELLO = [{"role": "user", "content": "hello"}]
WITH_TOOLS: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": TOOLS, "stream": True}
PLAIN: dict[str, Any] = {"model": "m", "messages": HELLO, "stream": True}


@pytest.mark.parametrize("body", [PLAIN, WITH_TOOLS], ids=["plain", "guarded"])
async def test_an_answer_in_one_long_write_arrives_whole(body: dict[str, Any]) -> None:
    answer = b"".join([frame(chunk({"content": f"word {n} "})) for n in range(3_000)])
    whole = answer + frame(chunk({}, "stop")) + DONE
    engine = streaming([whole])
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, _, got = await post(stack.url, body)
    assert (status, chunks_in(got)) == (200, chunks_in(whole))


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_clients_own_stop_inside_a_call_is_an_answer_without_the_call(streamed: bool) -> None:
    entry = {"index": 0, "id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "'}}
    ending = {"finish_reason": "tool_calls", "stop_reason": "Osaka"}
    last = {**chunk({}), "choices": [{"index": 0, "delta": {}, **ending}]}
    message = {"role": "assistant", "content": None, "tool_calls": [entry]}
    whole = {**chunk({}), "choices": [{"index": 0, "message": message, **ending}]}
    engine = streaming([frame(chunk({"tool_calls": [entry]})), frame(last), DONE]) if streamed else answering(whole)
    results: list[Any] = []
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    async with running(config(), pools, sink=results.append) as stack:
        status, _, got = await post(stack.url, {**WITH_TOOLS, "stream": streamed, "stop": ["Osaka"]})
    choice = (chunks_in(got)[-2] if streamed else json.loads(got))["choices"][0]
    assert (status, choice["finish_reason"], choice["stop_reason"]) == (200, "stop", "Osaka")
    assert b"get_weather" not in got
    assert [(result.attempt, result.verdict.counts) for result in results] == [(0, False)]
