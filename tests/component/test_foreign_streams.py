"""Both SDKs read the same answer from engines of other habits, whichever API they speak."""

import json
from typing import Any

import anthropic
import openai
import pytest
from support.engines import chunk, frame, streaming
from support.guard_stack import config
from support.stack import running

ARGUMENTS = '{"city": "Oslo"}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
FLAT_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
BLOCK_TOOL: Any = {"name": "get_weather", "input_schema": SCHEMA}
HELLO: Any = [{"role": "user", "content": "hello"}]


def entry(arguments: str | None, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **more, "function": {"arguments": arguments}}]}


def named(arguments: str | None, **more: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "c1", "type": "function", **more, "function": function}]}


# Deltas of one answer, and what stands for "not yet" in `finish_reason`.
HABITS: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "an empty finish reason": ([{"content": "So: "}, named(ARGUMENTS)], ""),
    "nulls": ([{"content": "So: ", "tool_calls": None}, named(None), entry(ARGUMENTS, id=None, type=None)], None),
    "named each time": ([{"content": "So: "}, named(ARGUMENTS[:5]), named(ARGUMENTS[5:])], None),
    "no index": ([{"content": "So: "}, named(ARGUMENTS, index=None)], None),
    "calls before text": ([named(ARGUMENTS[:5]), {"content": "So: "}, entry(ARGUMENTS[5:])], None),
    "empty lists": ([{"role": "assistant", "content": "So: ", "tool_calls": []}, named(ARGUMENTS)], None),
    "both at once": ([{"content": "So: ", **named(ARGUMENTS[:5])}, {"content": "", **entry(ARGUMENTS[5:])}], None),
}


@pytest.mark.parametrize("habit", HABITS)
async def test_text_and_call_arrive_whole_in_every_api(habit: str) -> None:
    deltas, not_yet = HABITS[habit]
    frames = [frame(chunk(delta, not_yet)) for delta in deltas]
    engine = streaming([*frames, frame(chunk({}, "tool_calls")), frame("[DONE]")])
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        found = [await by_chat(stack.client), await by_responses(stack.client), await by_messages(stack.url)]
    assert found == [("So: ", "get_weather", {"city": "Oslo"})] * 3
    assert len(engine.requests) == 3  # nobody's answer was run again


async def by_chat(client: openai.AsyncOpenAI) -> tuple[str | None, str, Any]:
    async with client.chat.completions.stream(model="m", messages=HELLO, tools=[CHAT_TOOL]) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    [call] = message.tool_calls or []
    return message.content, call.function.name, json.loads(call.function.arguments)


async def by_responses(client: openai.AsyncOpenAI) -> tuple[str | None, str, Any]:
    async with client.responses.stream(model="m", input="hello", tools=[FLAT_TOOL]) as stream:
        response = await stream.get_final_response()
    [call] = [item for item in response.output if item.type == "function_call"]
    return response.output_text, call.name, json.loads(call.arguments)


async def by_messages(url: str) -> tuple[str | None, str, Any]:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=99, messages=HELLO, tools=[BLOCK_TOOL]) as stream,
    ):
        message = await stream.get_final_message()
    [call] = [block for block in message.content if block.type == "tool_use"]
    return "".join(block.text for block in message.content if block.type == "text"), call.name, call.input
