"""The openai client's own accumulator accepts everything that leaves the guard, also after a rerun."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from support.chat_chunks import ChatAnswer, streams
from support.guard_harness import (
    TOOL_PARAMETERS,
    calls_of,
    chunks_of,
    healed,
    json_request,
    read,
    through,
    tools_request,
)

from lab.sim import FAULTS, SimSettings
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, Outcome
from serve.guard.core.markup import MARKUP, half_marker

STRICT = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": TOOL_PARAMETERS}}
    for name in ("get_weather", "run.shell", "plan_trip")
]
TEXT_FAULTS = sorted(name for name, fault in FAULTS.items() if fault.edit)


def final(sent: list[dict[str, Any]], body: dict[str, Any]) -> Any:
    """What `client.chat.completions.stream` hands its caller; it parses strict calls and checks every event."""
    state: Any = ChatCompletionStreamState(input_tools=body.get("tools", []))
    for chunk in sent:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion()


@pytest.mark.parametrize("fault", [None, *TEXT_FAULTS])
def test_streams_fold_to_the_calls_that_were_meant(fault: str | None) -> None:
    body = {**tools_request(5, tool_choice="required", stream_options={"include_usage": True}), "tools": STRICT}
    pool = SimSettings(num_speculative_tokens=3, thinking=True, faults={fault: 1.0} if fault else {})
    sent, _ = healed(body, pool, SimSettings(thinking=True))
    completion = final(sent, body)
    meant = calls_of(read(chunks_of(body, SimSettings(thinking=True))))
    calls = completion.choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == meant
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.total_tokens > 0


def test_a_json_answer_that_was_rerun_parses() -> None:
    body = json_request(5)
    sent, _ = healed(body, SimSettings(faults={"truncated_string": 1.0}), SimSettings())
    assert json.loads(final(sent, body).choices[0].message.content)


def speaks(drawn: tuple[ChatAnswer, list[dict[str, Any]]]) -> bool:
    """Whether an answer is one that the SDK hands on, which raises for what a filter has cut, and no marker has leaked.

    Hypothesis also draws the strings that stand in our sources, and the markers do.
    """
    answer, _ = drawn
    arguments = [json.loads(call["function"]["arguments"] or "null") for call in answer.calls]  # escaped, maybe
    text = json.dumps([answer.texts, answer.calls, arguments], ensure_ascii=False)
    if (
        MARKUP.search(text)
        or "parameter=" in text
        or "function=" in text
        or any(map(half_marker, re.split(r'[\\"]', text)))
    ):
        return False
    return bool(answer.calls or answer.text("content").strip()) and answer.finish != "content_filter"


@given(streams(calls_mix=False).filter(speaks))
def test_every_valid_stream_is_clean_and_folds_to_the_answer_that_it_carries(
    drawn: tuple[ChatAnswer, list[dict[str, Any]]],
) -> None:
    answer, chunks = drawn
    names = {call["function"]["name"] for call in answer.calls} | {"other"}
    tools = [{"type": "function", "function": {"name": name}} for name in sorted(names)]
    body = {"messages": [], "tools": tools, "stream_options": {"include_usage": True}}
    guard = Guard(GuardConfig(), body)
    completion = final(through(guard, chunks), body)
    [choice] = completion.choices
    calls = [call.model_dump(include={"id", "type", "function"}) for call in choice.message.tool_calls or ()]
    for call in calls:
        call["function"].pop("parsed_arguments", None)
    assert guard.outcome is Outcome.CLEAN
    assert (choice.message.content or "") == answer.text("content")
    assert calls == answer.calls
    assert choice.finish_reason == ("tool_calls" if answer.calls and answer.finish == "stop" else answer.finish)
    assert completion.usage.completion_tokens == answer.usage["completion_tokens"]
