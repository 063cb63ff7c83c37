"""The Responses API over real sockets with the OpenAI SDK: tool loops, faults, and how a response ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from support.engines import Engine, answering, chunk, frame, silent, streaming
from support.guard_harness import TOOL_PARAMETERS, TOOLS, chunks_of, read
from support.guard_stack import config, healing
from support.responses_api import call_delta, events_in, translated
from support.stack import Stack, running

from lab.sim import FAULTS, SimSettings
from serve.gateway.endpoints import explanation

SOUND = SimSettings(model="m", grammar="kimi_k2")
SLOW = {"stall", "slow_start"}
FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
OVERFLOW = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains 9000 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)
DONE = frame("[DONE]")


def scripted(*chunks: dict[str, Any]) -> Engine:
    return streaming([*map(frame, chunks), DONE])


@asynccontextmanager
async def before(engine: Any, **more: Any) -> AsyncIterator[Stack]:
    """A stack whose pools are all the same engine."""
    async with running(config("kimi_k2", **more), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        yield stack


async def answered(stack: Stack, *, stream: bool, **asked: Any) -> Any:
    """The response object, streamed or whole; of a stream also what its events say."""
    if not stream:
        return await stack.client.responses.create(model="m", **asked)
    done = []
    async with stack.client.responses.stream(model="m", **asked) as events:
        async for event in events:
            if event.type == "response.output_item.done":
                done.append(event.item)
        response = await events.get_final_response()
    assert [item.id for item in done] == [item.id for item in response.output]
    return response


async def failed(stack: Stack, **asked: Any) -> tuple[list[str], dict[str, Any]]:
    """The kinds of the events of a stream that fails, and the error in the last, which the SDK raises as well."""
    with pytest.raises(openai.APIError) as raised:
        [event async for event in await stack.client.responses.create(**asked, stream=True)]
    read = stack.client.responses.with_streaming_response.create(**asked, stream=True)
    async with read as response:
        events = events_in(await response.read())
    error, last = events[-2:]
    said = last["response"]["error"]
    assert said == {name: error[name] for name in said} == {name: error["error"][name] for name in said}
    assert (raised.value.code, raised.value.message) == (said["code"], said["message"])
    return [event["type"] for event in events], said


def meant(asked: dict[str, Any]) -> list[Any]:
    """The calls that an engine without faults answers with."""
    body = json.loads(translated(asked["input"], **{key: value for key, value in asked.items() if key != "input"}).body)
    message = read(chunks_of(body, SOUND))
    return [(call["id"], call["name"], json.loads(call["arguments"])) for call in message["calls"]]


class TestFaults:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("fault", sorted(set(FAULTS) - SLOW))
    async def test_every_fault_is_healed_and_each_call_is_what_the_model_meant(self, fault: str, stream: bool) -> None:
        pool = SimSettings(model="m", grammar="kimi_k2", num_speculative_tokens=3, faults={fault: 1.0})
        async with healing(pool) as (stack, _):
            for seed in range(3):
                asked: dict[str, Any] = {"input": "天气", "tools": FLAT, "tool_choice": "required"}
                response = await answered(stack, stream=stream, **asked, extra_body={"seed": seed})
                calls = [item for item in response.output if item.type == "function_call"]
                assert response.status == "completed"
                found = [(call.call_id, call.name, json.loads(call.arguments)) for call in calls]
                assert [call[1:] for call in found] == [call[1:] for call in meant({**asked, "seed": seed})]
                for _, _, arguments in found:
                    jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(arguments)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_when_no_pool_is_right_nothing_is_done_and_a_retry_is_not_suggested(self, stream: bool) -> None:
        bad = SimSettings(model="m", grammar="kimi_k2", faults={"truncated_string": 1.0})
        asked: dict[str, Any] = {"model": "m", "input": "x", "tools": FLAT, "tool_choice": "required"}
        async with healing(bad, standard=bad) as (stack, _):
            if not stream:
                with pytest.raises(openai.APIStatusError) as refused:
                    await stack.client.responses.create(**asked)
                assert (refused.value.status_code, refused.value.code) == (502, "integrity_violation")
                return
            kinds, error = await failed(stack, **asked)
        assert kinds[-2:] == ["error", "response.failed"]
        assert error["code"] == "invalid_prompt"
        assert "response.output_item.done" not in kinds

    async def test_a_plain_stream_that_the_engine_breaks_off_has_failed(self) -> None:
        engine = streaming([frame(chunk({"content": "Once"}))])
        async with before(engine) as stack:
            kinds, error = await failed(stack, model="m", input="x")
        assert kinds[-3:] == ["response.output_text.delta", "error", "response.failed"]
        assert error["code"] == "server_error"

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_limit_of_tokens_makes_the_answer_incomplete_and_no_call_of_it_is_broken(
        self, stream: bool
    ) -> None:
        async with healing(SOUND) as (stack, _):
            asked: Any = {"model": "m", "input": "x", "tools": FLAT, "tool_choice": "required", "max_output_tokens": 3}
            if stream:
                events = [event async for event in await stack.client.responses.create(**asked, stream=True)]
                assert events[-1].type == "response.incomplete"
                response = events[-1].response
            else:
                response = await stack.client.responses.create(**asked)
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert not [item for item in response.output if item.type == "function_call"]


class TestErrors:
    async def test_a_prompt_that_is_too_long_has_the_code_on_which_agents_compact(self) -> None:
        error = {"error": {"message": OVERFLOW, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
        async with before(answering(error, 400)) as stack:
            with pytest.raises(openai.BadRequestError) as refused:
                await stack.client.responses.create(model="m", input="x")
            assert refused.value.code == "context_length_exceeded"
            # Codex reads this code in a stream only.
            kinds, error = await failed(stack, model="m", input="x")
        assert kinds[-2:] == ["error", "response.failed"]
        assert error["code"] == "context_length_exceeded"

    @pytest.mark.parametrize(
        "asked",
        [{"model": "unknown"}, {"previous_response_id": "resp_1"}, {"background": True}, {"tool_choice": "required"}],
    )
    async def test_a_request_that_cannot_be_answered_is_a_400_that_agents_show(self, asked: dict[str, Any]) -> None:
        async with before(answering()) as stack:
            for stream in (True, False):
                with pytest.raises(openai.BadRequestError):
                    await stack.client.responses.create(**{"model": "m", "input": "x", "stream": stream, **asked})


class TestClients:
    async def test_a_tool_loop_keeps_reasoning_ids_and_custom_tools(self) -> None:
        engine = scripted(
            chunk({"role": "assistant", "reasoning": "Look first."}),
            chunk(call_delta(0, '{"input":"*** Begin Patch"}', "functions.apply_patch:0", "apply_patch")),
            chunk({}, "tool_calls"),
        )
        async with before(engine) as stack:
            asked: Any = {"tools": [PATCH], "include": ["reasoning.encrypted_content"], "store": False}
            first = await answered(stack, stream=True, input="go", **asked)
            assert [item.type for item in first.output] == ["reasoning", "custom_tool_call"]
            assert first.output[1].input == "*** Begin Patch"
            result = {"type": "custom_tool_call_output", "call_id": first.output[1].call_id, "output": "ok"}
            echo = [item.model_dump(exclude_none=True) for item in first.output]
            await answered(stack, stream=True, input=[{"role": "user", "content": "go"}, *echo, result], **asked)
        _, turn, reply = json.loads(engine.requests[-1][1])["messages"]
        (call,) = turn["tool_calls"]
        assert (turn["reasoning"], call["id"]) == ("Look first.", "functions.apply_patch:0")
        assert json.loads(call["function"]["arguments"]) == {"input": "*** Begin Patch"}
        assert (reply["tool_call_id"], reply["content"]) == (call["id"], "ok")

    async def test_parse_gets_the_document(self) -> None:
        class Trip(pydantic.BaseModel):
            city: str
            days: int

        async with healing(SimSettings(model="m", faults={"truncated_string": 1.0})) as (stack, _):
            response = await stack.client.responses.parse(model="m", input="plan", text_format=Trip)
            assert isinstance(response.output_parsed, Trip)
            async with stack.client.responses.stream(model="m", input="plan", text_format=Trip) as stream:
                response = await stream.get_final_response()
            assert isinstance(response.output_parsed, Trip)

    async def test_headers_say_what_was_left_out_and_who_answered(self) -> None:
        async with healing(SOUND) as (stack, _):
            raw = await stack.client.responses.with_raw_response.create(
                model="m",
                input="hello",
                tools=[{"type": "web_search"}],
                store=True,
                extra_headers={"x-enable-speculative": "false", "x-request-id": "mine"},
            )
        assert raw.headers["x-specgate-dropped"] == "tools.web_search"
        assert raw.headers["x-specgate-speculative"] == "off"
        assert raw.parse().id == "resp_mine"

    @pytest.mark.parametrize(("status", "said"), [(200, {"count": 7}), (404, {"detail": "Not Found"})])
    async def test_tokens_are_counted_by_an_engine_or_estimated(self, status: int, said: dict[str, Any]) -> None:
        engine = answering(said, status)
        async with before(engine) as stack:
            raw = await stack.client.responses.input_tokens.with_raw_response.count(
                model="m", input="hello", instructions="Be brief.", tools=FLAT, tool_choice="required"
            )
        counted = raw.parse()
        assert (counted.object, raw.headers.get("x-specgate-estimate")) == (
            "response.input_tokens", None if status == 200 else "true",
        )  # fmt: skip
        assert counted.input_tokens == 7 if status == 200 else counted.input_tokens > 7
        assert set(json.loads(engine.requests[0][1])) == {"model", "messages", "tools"}

    async def test_the_decision_is_explained_for_a_responses_body(self) -> None:
        body = json.dumps({"model": "m:nospec", "input": "x", "tools": FLAT, "tool_choice": "required"}).encode()
        async with healing(SOUND) as (stack, _):
            explained, _ = await explanation(stack.gateway, body, {}, "responses")
        assert (explained["speculative"], explained["features"]["tool_choice"]) == (False, "required")

    async def test_a_silent_engine_is_covered_by_events_that_reset_a_clients_timer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("serve.proxy.exchange.KEEP_ALIVE_S", 0.02)
        engine = silent()
        async with before(engine) as stack:
            stream = await stack.client.responses.create(model="m", input="x", stream=True)
            seen = [(await anext(aiter(stream))).type for _ in range(4)]
            await stream.close()
            while engine.cancelled < 1:  # noqa: ASYNC110 - what it waits for happens in other code
                await asyncio.sleep(0.02)
        assert seen == ["response.created", *["response.in_progress"] * 3]
