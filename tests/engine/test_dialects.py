"""Anthropic's API and OpenAI's Responses on real engines behind HAProxy: tool calls, token counts, the opt-out."""

import json
from typing import Any

import anthropic
import openai
import pytest

pytestmark = pytest.mark.engine

MODELS = ("tiny-kimi", "tiny-qwen")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
QUESTION = "What is the weather in Osaka?"


@pytest.fixture
async def claude(client: openai.AsyncOpenAI) -> Any:
    url = str(client.base_url).removesuffix("/v1/").removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("model", MODELS)
class TestMessages:
    async def test_a_tool_loop_whole_and_streamed(self, claude: anthropic.AsyncAnthropic, model: str) -> None:
        tools: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
        ask: Any = {
            "model": model,
            "max_tokens": 200,
            "tools": tools,
            "messages": [{"role": "user", "content": QUESTION}],
            "extra_body": {"temperature": 0},
        }
        whole = await claude.messages.create(**ask)
        async with claude.messages.stream(**ask) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            (call,) = [block for block in message.content if block.type == "tool_use"]
            assert (message.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"city": "Osaka"})
            assert message.usage.output_tokens > 0
        echo = [block.model_dump() for block in whole.content]
        result = {"type": "tool_result", "tool_use_id": echo[-1]["id"], "content": "Sunny"}
        ask["messages"] += [{"role": "assistant", "content": echo}, {"role": "user", "content": [result]}]
        answer = await claude.messages.create(**ask)
        assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use")

    async def test_tokens_are_counted_by_the_engine(self, claude: anthropic.AsyncAnthropic, model: str) -> None:
        messages: Any = [{"role": "user", "content": QUESTION}]
        counted = await claude.messages.with_raw_response.count_tokens(model=model, messages=messages)
        assert "x-specgate-estimate" not in counted.headers
        answer = await claude.messages.create(model=model, max_tokens=5, messages=messages)
        assert (await counted.parse()).input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("model", MODELS)
class TestResponses:
    async def test_a_tool_call_whole_and_streamed(self, client: openai.AsyncOpenAI, model: str) -> None:
        ask: Any = {
            "model": model,
            "input": QUESTION,
            "temperature": 0,
            "max_output_tokens": 200,
            "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}],
        }
        whole = await client.responses.create(**ask)
        async with client.responses.stream(**ask) as stream:
            streamed = await stream.get_final_response()
        for response in (whole, streamed):
            (call,) = [item for item in response.output if item.type == "function_call"]
            assert (response.status, call.name, json.loads(call.arguments)) == (
                "completed",
                "get_weather",
                {"city": "Osaka"},
            )

    async def test_no_speculation_by_the_models_name(self, client: openai.AsyncOpenAI, model: str) -> None:
        asked = client.responses.with_raw_response
        answer = await asked.create(model=f"{model}:nospec", input="Tell me about Lisbon", max_output_tokens=20)
        assert answer.headers["x-specgate-speculative"] == "off"
        assert answer.parse().model == model
