"""Answers of any shape, whole and streamed, end in a valid answer or an explicit error: no exception, no silence."""

import asyncio
import json
from collections.abc import Mapping
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import TOOL_PARAMETERS, TOOLS, SentTo, answer_of, chunks_of, json_request, tools_request
from support.guard_stack import chunks_in

from lab.sim import SimSettings
from policies import Candidate
from serve.config.guard import GuardConfig
from serve.errors import GatewayError
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard
from serve.guard.response import StreamedResponse, WholeResponse
from serve.http1.sse import DONE
from serve.proxy.attempts import Attempt

NAMES = {tool["function"]["name"] for tool in TOOLS}
POOL = SimSettings(num_speculative_tokens=2, thinking=True)
REQUESTS = {"tools": tools_request(3, tool_choice="required"), "json": json_request(3)}
ODD: list[Any] = [
    None, True, -1, 0, 3, 10**30, 1.5, "", "x", "stop", [], {}, [[]], [None], ["x"], [{}], {"a": []}, {"index": 0},
    [{"type": "text", "text": "hi"}], [{"index": 0}], {"content": [{"token": 1}]},
    {"prompt_tokens": "x", "total_tokens": {}},
]  # fmt: skip


class EngineResponse:
    status, is_stream = 200, False
    headers: Mapping[str, str] = {}

    def __init__(self, body: bytes) -> None:
        self.first = body

    async def body(self, limit_bytes: int) -> bytes:
        return self.first

    async def rest(self) -> Any:
        return
        yield


def answered(
    body: Mapping[str, Any], bodies: list[bytes], *, streamed: bool
) -> tuple[bytes, GatewayError | None, Guard]:
    """What a client gets if engines answer so, one after the other."""

    async def run() -> tuple[bytes, GatewayError | None, Guard]:
        exchange: Any = SentTo()
        settings = GuardConfig(mode="strict")
        response: Any = (
            StreamedResponse(exchange, Guard(settings, body))
            if streamed
            else WholeResponse(exchange, WholeGuard(settings, body))
        )
        for number, each in enumerate(bodies):
            if number:
                response.guard.restart("standard")
            sent: Any = EngineResponse(each)
            await response.attempt(Attempt(Candidate("p", opt_out=False, speculative=False), sent))
            if response.guard.state is not GuardState.RERUN:
                break
        try:
            await response.finish()
        except GatewayError as error:
            return exchange.sent, error, response.guard
        return exchange.sent, None, response.guard

    return asyncio.run(run())


def mutated(value: Any, rng: Random, odd: Any) -> Any:
    """A copy in which one place holds something odd, or is missing."""
    value = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(each: Any) -> None:
        for key in each if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ():
            places.append((each, key))
            walk(each[key])

    walk(value)
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    elif rng.random() < 0.1 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = odd
    return value


def assert_valid(kind: str, message: Mapping[str, Any]) -> None:
    for call in message.get("tool_calls") or ():
        assert call["function"]["name"] in NAMES
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL_PARAMETERS)
    if kind == "json" and message.get("content"):
        jsonschema.validate(json.loads(message["content"]), TOOL_PARAMETERS)


MUTATIONS = st.tuples(st.randoms(use_true_random=False), st.lists(st.sampled_from(ODD), min_size=1, max_size=3))


@pytest.mark.parametrize("again", [True, False])
@given(st.sampled_from(sorted(REQUESTS)), MUTATIONS)
def test_a_whole_answer_of_any_shape_is_valid_or_an_explicit_error(
    again: bool, kind: str, mutations: tuple[Any, list[Any]]
) -> None:
    rng, odds = mutations
    body = REQUESTS[kind]
    sound = answer_of(body, POOL)
    answer = sound
    for odd in odds:
        answer = mutated(answer, rng, odd)
    first = json.dumps(answer).encode()
    sent, error, guard = answered(body, [first, first if again else json.dumps(sound).encode()], streamed=False)
    assert Outcome.GUARD_ERROR not in [verdict.outcome for verdict in guard.verdicts]
    if error is None:
        for choice in json.loads(sent)["choices"]:
            assert_valid(kind, choice["message"])
    else:
        assert again, "the second engine was sound"
        assert error.status == 502


@pytest.mark.parametrize("again", [True, False])
@given(st.sampled_from(sorted(REQUESTS)), MUTATIONS)
def test_a_stream_of_any_shape_is_valid_or_an_explicit_error(
    again: bool, kind: str, mutations: tuple[Any, list[Any]]
) -> None:
    rng, odds = mutations
    body = REQUESTS[kind]
    sound = chunks_of(body, POOL)
    chunks: Any = sound
    for odd in odds:
        chunks = mutated(chunks, rng, odd)
    first, second = (
        b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in stream) + DONE
        for stream in (chunks, sound)
    )
    sent, error, guard = answered(body, [first, first if again else second], streamed=True)
    assert Outcome.GUARD_ERROR not in [verdict.outcome for verdict in guard.verdicts]
    if error is None:
        assert sent.endswith(DONE)
        message = folded(chunks_in(sent)[:-1])
        assert message["finish_reason"]
        assert_valid(kind, message)
    else:
        assert DONE not in sent
        assert (error.status, error.to_body()["error"]["message"] != "") == (502, True)


def folded(chunks: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": "", "tool_calls": [], "finish_reason": None}
    for each in chunks:
        for choice in each.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            message["content"] += delta.get("content") or ""
            message["finish_reason"] = choice.get("finish_reason") or message["finish_reason"]
            for entry in delta.get("tool_calls") or ():
                if entry.get("id"):
                    message["tool_calls"].append({"function": dict(entry["function"])})
                else:
                    message["tool_calls"][-1]["function"]["arguments"] += entry["function"]["arguments"]
    return message


SHAPES: dict[str, Any] = {
    "a choice without index": lambda choice: choice.pop("index"),
    "content in parts": lambda choice: choice["message"].update(content=[{"type": "text", "text": "hi"}]),
    "a message that is text": lambda choice: choice.update(message="hi"),
    "calls that are no list": lambda choice: choice["message"].update(tool_calls={"0": {}}),
    "calls that are no objects": lambda choice: choice["message"].update(tool_calls=["x", 3]),
    "a function that is text": lambda choice: choice["message"].update(tool_calls=[{"id": "x", "function": "f"}]),
    "arguments as an object": lambda choice: choice["message"].update(
        tool_calls=[{"id": "x", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}]
    ),
    "an index of a million": lambda choice: choice.update(index=1_000_000),
    "a finish reason in a list": lambda choice: choice.update(finish_reason=["stop"]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_known_odd_shape_runs_again_and_is_then_an_explicit_502(shape: str) -> None:
    body = REQUESTS["tools"]
    sound = answer_of(body, POOL)
    odd = json.loads(json.dumps(sound))
    SHAPES[shape](odd["choices"][0])
    bodies = [json.dumps(each).encode() for each in (odd, sound)]
    sent, error, guard = answered(body, bodies, streamed=False)
    assert (error, guard.outcome) == (None, Outcome.RERUN)
    assert json.loads(sent)["choices"] == sound["choices"]
    _, error, _ = answered(body, [bodies[0], bodies[0]], streamed=False)
    assert error is not None
    assert (error.status, error.code) == (502, "integrity_violation")


def test_two_choices_of_one_index_are_no_answer() -> None:
    body = REQUESTS["tools"]
    answer = answer_of(body, POOL)
    answer["choices"] *= 2
    assert WholeGuard(GuardConfig(), body).check(answer) is None
