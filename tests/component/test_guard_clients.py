"""The guard as its clients meet it: the OpenAI SDK's helpers, deadlines, leaving early, old turns, and its settings."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from support.engines import chunk, frame, silent, streaming
from support.guard_harness import TOOLS, tools_request
from support.guard_stack import chunks_in, config, healing, post
from support.stack import running

from lab.sim import SimSettings
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

CUT = SimSettings(model="m", faults={"truncated_string": 1.0})
SOUND = SimSettings(model="m")
HELLO = [{"role": "user", "content": "hello"}]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own timeout is the limit."""
    while not holds():  # noqa: ASYNC110 - what it waits for happens in other code, which has no event to set
        await asyncio.sleep(0.02)


class TestTime:
    async def test_a_rerun_has_what_is_left_of_the_deadline(self) -> None:
        engine = silent()
        async with healing(CUT, standard=engine, limits={"request_timeout_s": 1.5}) as (stack, _):
            status, _, body = await post(stack.url, tools_request(model="m", tool_choice="required"))
            await until(lambda: engine.cancelled == len(engine.requests))
        assert (status, json.loads(body)["error"]["code"]) == (504, "deadline_exceeded")

    async def test_a_client_that_leaves_in_the_rerun_frees_the_engine_and_the_rerun_is_not_judged(self) -> None:
        engine = silent()
        async with healing(CUT, standard=engine) as (stack, judged):
            asked = asyncio.ensure_future(post(stack.url, tools_request(model="m", tool_choice="required")))
            await until(lambda: len(engine.requests) == 1)
            asked.cancel()
            await until(lambda: engine.cancelled == 1)
            await until(lambda: bool(judged))
        assert [(each.pool, each.final) for each in judged] == [("speculative", None)]

    async def test_a_client_that_leaves_a_guarded_stream_frees_the_engine_and_nothing_is_judged(self) -> None:
        engine = streaming([frame(chunk({"role": "assistant", "content": ""}))], hang=True)
        judged: list[Any] = []
        pools = {("m", "speculative"): engine, ("m", "standard"): engine}
        async with running(config(), pools, sink=judged.append) as stack:
            stream = await stack.client.chat.completions.create(
                model="m",
                messages=HELLO,  # type: ignore[arg-type]
                tools=TOOLS,  # type: ignore[arg-type]
                stream=True,
            )
            await anext(aiter(stream))
            await stream.close()
            await until(lambda: engine.cancelled == 1)
        assert (len(engine.requests), judged) == (1, [])

    async def test_an_answer_cut_by_length_is_judged_and_does_not_count(self) -> None:
        async with healing(SOUND) as (stack, judged):
            await post(stack.url, tools_request(model="m", tool_choice="required", max_tokens=3, stream=True))
        assert [each.verdict.counts for each in judged] == [False]


class TestHistory:
    async def test_a_malformed_call_of_an_earlier_turn_does_not_spoil_the_next(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Os'}}
        messages = [
            *HELLO,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
        statuses = {}
        for mode in ("fix", "off"):
            async with healing(SOUND, guard={"history": mode}) as (stack, _):
                statuses[mode], _, _ = await post(stack.url, {"model": "m", "messages": messages})
        assert statuses == {"fix": 200, "off": 400}


class GetWeather(pydantic.BaseModel):
    city: str
    days: int


class TestSdk:
    @pytest.mark.parametrize("faulty", [SOUND, CUT])
    async def test_the_streaming_helper_accepts_tools_after_a_rerun_too(self, faulty: SimSettings) -> None:
        tool = openai.pydantic_function_tool(GetWeather)
        async with healing(faulty) as (stack, _):
            for seed in range(8):
                async with stack.client.chat.completions.stream(
                    model="m",
                    messages=HELLO,
                    tools=[tool],
                    tool_choice="required",
                    seed=seed,  # type: ignore[arg-type]
                ) as stream:
                    async for _event in stream:
                        pass
                    final = await stream.get_final_completion()
                for call in final.choices[0].message.tool_calls or []:
                    assert isinstance(call.function.parsed_arguments, GetWeather)
                assert final.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize("faulty", [SOUND, CUT])
    async def test_parse_gives_models_and_tools_after_a_rerun_too(self, faulty: SimSettings) -> None:
        tool = openai.pydantic_function_tool(GetWeather)
        async with healing(faulty) as (stack, _):
            called = await stack.client.chat.completions.parse(
                model="m",
                messages=HELLO,
                tools=[tool],
                tool_choice="required",  # type: ignore[arg-type]
            )
            parsed = await stack.client.chat.completions.parse(
                model="m",
                messages=HELLO,
                response_format=GetWeather,  # type: ignore[arg-type]
            )
        calls = called.choices[0].message.tool_calls
        assert calls
        assert all(isinstance(call.function.parsed_arguments, GetWeather) for call in calls)
        assert isinstance(parsed.choices[0].message.parsed, GetWeather)

    async def test_the_streaming_helper_parses_json_after_a_rerun(self) -> None:
        async with (
            healing(CUT, guard={"hold_json": True}) as (stack, _),
            stack.client.chat.completions.stream(
                model="m",
                messages=HELLO,
                response_format=GetWeather,  # type: ignore[arg-type]
            ) as stream,
        ):
            final = await stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, GetWeather)


class TestConfig:
    @pytest.mark.parametrize("guard", [{"mode": "observe"}, {"mode": "off"}, {"reruns": 0}])
    def test_optimism_needs_a_guard_that_heals(self, guard: dict[str, Any]) -> None:
        settings = config(guard=guard)
        settings["policy"]["optimistic"] = True
        with pytest.raises(ConfigError, match=r"guard\.mode to heal or strict"):
            compile_for(GatewayConfig.parse(settings))

    @pytest.mark.parametrize("guard", [{"mode": "healing"}, {"reruns": -1}, {"rerun": 1}, {"schema": "ignore"}])
    def test_a_wrong_setting_is_named_by_its_place(self, guard: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=rf"models\.m\.guard\.{next(iter(guard))}"):
            GatewayConfig.parse(config(guard=guard))


@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}], ids=["no usage", "usage"])
async def test_a_streamed_call_that_max_tokens_cut_costs_no_rerun_and_usage_goes_only_to_who_asked_for_it(
    asked: dict[str, Any],
) -> None:
    entry = {"index": 0, "id": "c0", "function": {"name": "get_weather", "arguments": '{"city": "Be'}}
    usage = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29}}
    frames = [chunk({"tool_calls": [entry]}), chunk({}, "tool_calls"), usage, "[DONE]"]
    engine = streaming([*map(frame, frames)])
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        request = tools_request(model="m", stream=True, max_tokens=20, **asked)
        sent = chunks_in((await post(stack.url, request))[2])
    assert [json.loads(body)["stream_options"]["include_usage"] for _, body in engine.requests] == [True]
    assert sent[-1] == "[DONE]"
    reasons = [choice["finish_reason"] for each in sent[:-1] for choice in each["choices"]]
    told = [each["usage"] for each in sent[:-1] if "usage" in each]
    assert (reasons, told) == (["length"], [usage["usage"]] * len(asked))
