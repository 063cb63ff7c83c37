"""Anthropic's SDK against a gateway with simulated and hand-written engines."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from support.guard_stack import healing
from support.stack import Stack

from serve.engine.sim import SimSettings
from serve.guard.attempt_result import AttemptResult

SOUND = SimSettings(model="m")
CUT = SimSettings(model="m", faults={"truncated_string": 1.0})
HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}]
CALL: Any = {"model": "m", "max_tokens": 1000, "messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "any"}}


@asynccontextmanager
async def connected(
    faulty: SimSettings, **options: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Stack, list[AttemptResult]]]:
    async with healing(faulty, **options) as (stack, judged):
        client = anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0)
        async with client:
            yield client, stack, judged


class TestAnswers:
    @pytest.mark.parametrize("faulty", [SOUND, CUT])
    async def test_a_broken_call_is_healed_before_the_client_sees_it_streamed_or_whole(
        self, faulty: SimSettings
    ) -> None:
        async with connected(faulty) as (client, _, _):
            whole = await client.messages.create(**CALL)
            async with client.messages.stream(**CALL) as stream:
                streamed = await stream.get_final_message()
        for message in (whole, streamed):
            calls = [block for block in message.content if block.type == "tool_use"]
            assert message.stop_reason == "tool_use"
            assert calls
            assert all(set(call.input) == {"city", "days"} for call in calls)
            assert message.usage.input_tokens > 0
            assert message.usage.output_tokens > 0

    async def test_an_unknown_model_is_an_error_in_anthropics_shape_that_is_not_retried(self) -> None:
        async with connected(SOUND) as (client, _, _):
            with pytest.raises(anthropic.BadRequestError, match="Known models: m") as failed:
                await client.messages.create(model="nope", max_tokens=9, messages=HELLO)
        assert failed.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        assert failed.value.request_id


class TestOptOut:
    @pytest.mark.parametrize("api", ["chat", "messages"])
    async def test_the_suffix_of_the_models_name_forbids_speculation_and_is_not_echoed(self, api: str) -> None:
        async with connected(SOUND) as (client, stack, _):
            if api == "chat":
                raw: Any = await stack.client.chat.completions.with_raw_response.create(
                    model="m:nospec", messages=HELLO, extra_body={"enable_speculative": True}
                )
            else:
                raw = await client.messages.with_raw_response.create(model="m:nospec", max_tokens=99, messages=HELLO)
            answer = json.loads(raw.text if api == "chat" else await raw.text())
        assert raw.headers["x-specgate-speculative"] == "off"
        assert raw.headers["x-specgate-reasons"] == "caller-opt-out"
        assert answer["model"] == "m"
