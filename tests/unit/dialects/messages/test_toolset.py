"""Anthropic's toolset for a computer: one function for the engine, calls named by their action for the client."""

import json
from typing import Any

import jsonschema_rs
import pytest
from support.guard_harness import call, calls, chunk, through

from serve.config.guard import GuardConfig
from serve.dialects.dialect import Identity, Translated
from serve.dialects.messages import MESSAGES
from serve.guard.core import Guard

TOOLSET = {"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": False}, "wait": None}}
READ = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
MADE = [
    ("computer", {"action": "left_click", "coordinate": [1, 2], "text": "ctrl"}),
    ("read", {"path": "a" * 400}),
    ("computer", {"action": "screenshot"}),
]
BLOCKS = [
    ("left_click", {"coordinate": [1, 2], "text": "ctrl"}, "computer"),
    ("read", {"path": "a" * 400}, None),
    ("screenshot", {}, "computer"),
]
IDENTITY = Identity("r", "m")


def translated(messages: Any = ({"role": "user", "content": "Go."},), tools: Any = (TOOLSET, READ)) -> Translated:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages), "tools": list(tools)}
    return MESSAGES.decode(json.dumps(body).encode())


def seen(blocks: list[dict[str, Any]]) -> list[tuple[str, Any, str | None]]:
    return [(each["name"], each["input"], each.get("toolset_name")) for each in blocks if each["type"] == "tool_use"]


def test_a_toolset_is_one_function_without_what_is_disabled() -> None:
    given = translated(tools=[TOOLSET])
    [function] = [each["function"] for each in json.loads(given.body)["tools"]]
    assert (function["name"], given.dropped) == ("computer", ())
    judged = jsonschema_rs.validator_for(function["parameters"])
    assert judged.is_valid({"action": "scroll", "scroll_direction": "up", "scroll_amount": 3})
    assert judged.is_valid({"action": "wait", "duration": 1})
    assert not judged.is_valid({"action": "zoom", "region": [0, 0, 1, 1]})


def test_a_whole_answer_names_calls_by_their_action_and_they_come_back_in_the_next_turn() -> None:
    made = [call(index, name, json.dumps(value)) for index, (name, value) in enumerate(MADE)]
    completion = {"choices": [{"index": 0, "message": {"tool_calls": made}, "finish_reason": "tool_calls"}]}
    answer = json.loads(MESSAGES.encode_whole(completion, translated().memo, IDENTITY))
    assert seen(answer["content"]) == BLOCKS

    turn = {"role": "assistant", "content": answer["content"]}
    again = json.loads(translated([{"role": "user", "content": "Go."}, turn]).body)["messages"][1]["tool_calls"]
    assert [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in again] == MADE


@pytest.mark.parametrize("live", [True, False])
def test_a_stream_has_the_same_calls(live: bool) -> None:
    chunks = [chunk({"role": "assistant", "content": "I look."})]
    for index, (name, value) in enumerate(MADE):
        text = json.dumps(value)
        chunks.append(chunk(calls(call(index, name, ""))))
        pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
        chunks += [chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in pieces]
    given = translated()
    guard = Guard(GuardConfig(), json.loads(given.body), live=live)
    stream = MESSAGES.stream_encoder(given.memo, IDENTITY)
    passed = through(guard, [*chunks, chunk({}, "tool_calls")])
    sent = b"".join([stream.start(), *map(stream.feed, passed), stream.finish()])
    blocks: list[dict[str, Any]] = []
    for frame in sent.decode().split("\n\n")[:-1]:
        event = json.loads(frame.partition("data: ")[2])
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "said": ""})
        elif event["type"] == "content_block_delta":
            blocks[-1]["said"] += event["delta"].get("partial_json", "")
    assert seen([{**each, "input": json.loads(each["said"] or "{}")} for each in blocks]) == BLOCKS


def test_a_tool_of_the_same_name_that_is_none_of_a_toolset_is_called_as_ever() -> None:
    made = [call(0, "computer", '{"action":"left_click"}')]
    completion = {"choices": [{"index": 0, "message": {"tool_calls": made}, "finish_reason": "tool_calls"}]}
    plain = {"name": "computer", "input_schema": {"type": "object"}}
    answer = json.loads(MESSAGES.encode_whole(completion, translated(tools=[plain]).memo, IDENTITY))
    assert seen(answer["content"]) == [("computer", {"action": "left_click"}, None)]
