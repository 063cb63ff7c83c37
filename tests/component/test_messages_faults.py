"""Every fault of the simulated engine behind the Messages API: healed, or an error in Anthropic's shape."""

from typing import Any

import anthropic
import jsonschema
import pytest
from support.anthropic_tools import SCHEMA, TOOLS
from support.guard_stack import healing

from lab.sim import FAULTS, SimSettings

QUESTIONS = 2  # each whole and streamed


async def asked(client: anthropic.AsyncAnthropic, number: int, *, stream: bool) -> anthropic.types.Message:
    messages: Any = [{"role": "user", "content": f"hello, for the {number}th time"}]
    request: Any = {"model": "m", "max_tokens": 2000, "messages": messages, "tools": TOOLS}
    request["tool_choice"] = {"type": "any"}
    if not stream:
        return await client.messages.create(**request)
    async with client.messages.stream(**request) as events:
        return await events.get_final_message()


async def all_asked(url: str) -> list[anthropic.types.Message | anthropic.APIError]:
    """What a client has of each question: a message, or the error that the SDK makes of the answer."""
    outcomes: list[anthropic.types.Message | anthropic.APIError] = []
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        for number in range(2 * QUESTIONS):
            try:
                outcomes.append(await asked(client, number // 2, stream=bool(number % 2)))
            except anthropic.APIError as error:
                outcomes.append(error)
    return outcomes


def check(message: anthropic.types.Message) -> None:
    calls = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason == "tool_use") is bool(calls)
    for call in calls:
        assert call.name == "get_weather"
        jsonschema.Draft202012Validator(SCHEMA).validate(call.input)
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize("fault", sorted(FAULTS))
async def test_a_fault_of_one_pool_is_healed_by_the_other(fault: str) -> None:
    settings = SimSettings(model="m", faults={fault: 1.0}, stall_s=0.05)
    async with healing(settings) as (stack, _):
        outcomes = await all_asked(stack.url)
    for outcome in outcomes:
        if isinstance(outcome, anthropic.APIError):  # faults that are the engine's in any pool, before a rerun is due
            raise outcome
        check(outcome)


@pytest.mark.parametrize("fault", sorted(FAULTS))
async def test_a_fault_that_nothing_heals_is_an_error_in_anthropics_shape(fault: str) -> None:
    settings = SimSettings(model="m", faults={fault: 1.0}, stall_s=0.05)
    async with healing(settings, standard=settings, guard={"mode": "strict"}) as (stack, _):
        outcomes = await all_asked(stack.url)
    for outcome in outcomes:
        if not isinstance(outcome, anthropic.APIError):
            check(outcome)
            continue
        body: Any = outcome.body
        assert body["type"] == "error"
        assert body["error"]["type"] in ("api_error", "overloaded_error", "timeout_error")
        assert body["error"]["message"]


@pytest.mark.parametrize("fault", sorted(FAULTS))
async def test_without_the_guard_no_call_is_sent_that_cannot_be_read(fault: str) -> None:
    settings = SimSettings(model="m", faults={fault: 1.0}, stall_s=0.05)
    async with healing(settings, standard=settings, guard={"mode": "off"}) as (stack, _):
        outcomes = await all_asked(stack.url)
    for outcome in outcomes:
        if isinstance(outcome, anthropic.APIError):
            body: Any = outcome.body
            assert body["error"]["type"] == "api_error"
            continue
        calls = [block for block in outcome.content if block.type == "tool_use"]
        assert all(isinstance(call.input, dict) for call in calls)
        assert (outcome.stop_reason == "tool_use") is bool(calls)
