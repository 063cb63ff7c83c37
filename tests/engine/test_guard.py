"""A real vLLM pool whose tool parser is broken by a plug-in is healed end to end."""

import json
from typing import Any

import openai
import pytest

from lab.demo import SEARCH, WEATHER

pytestmark = pytest.mark.engine
ASKED: dict[str, Any] = {
    "model": "tiny-qwen",
    "messages": [{"role": "user", "content": "What is the weather in Osaka?"}],
    "tools": [WEATHER, SEARCH],
    "temperature": 0,
    "max_tokens": 200,
}
FAULT = {"vllm_xargs": {"test_fault": 1}}


async def test_a_whole_answer_of_a_faulty_parser_goes_on_on_the_standard_pool(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASKED, extra_body=FAULT)
    message = raw.parse().choices[0].message
    assert raw.headers["x-specgate-pool"] == "speculative"
    assert raw.headers["x-specgate-rerun"].startswith("standard; resumed=")
    assert [json.loads(call.function.arguments) for call in message.tool_calls or ()] == [{"city": "Osaka"}]


async def test_a_stream_of_a_faulty_parser_goes_on_with_the_standard_pools_call(client: openai.AsyncOpenAI) -> None:
    reply: dict[str, Any] = {}
    async with client.chat.completions.stream(**ASKED, extra_body=FAULT) as stream:
        async for event in stream:
            if event.type == "chunk":
                reply |= (event.chunk.model_extra or {}).get("specgate", {})
        final = await stream.get_final_completion()
    assert reply.pop("resumed") > 0
    assert reply == {"rerun": "standard", "reasons": ["truncated"], "from": "speculative"}
    assert [json.loads(call.function.arguments) for call in final.choices[0].message.tool_calls or ()] == [
        {"city": "Osaka"}
    ]


async def test_without_the_fault_the_same_parser_needs_no_rerun(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASKED)
    assert raw.headers["x-specgate-pool"] == "speculative"
    assert "x-specgate-rerun" not in raw.headers
