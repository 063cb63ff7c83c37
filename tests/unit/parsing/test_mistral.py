"""Mistral's calls: what vLLM's tests and mistral-common say, and what damage makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.parsing import ParsedMessage, parse
from tests.unit.parsing import cases


def tool(name: str, /, **properties: str) -> dict[str, Any]:
    members = {key: {"type": kind} for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": members}}}


TOOLS = [
    tool("add", a="number", b="number"),
    tool("multiply", a="number", b="number"),
    tool("bash", command="string"),
    tool("get_age", name="string"),
    tool("now"),
]
ADD = ("add", {"a": 3.5, "b": 4})
SCRIPT = {"command": "print(\"hello world!\")\nre.compile(r'{}')"}


def read(text: str, thinking: bool = False) -> ParsedMessage:
    whole = parse(text, "mistral", TOOLS, thinking)
    assert cases.stream(text, grammar="mistral", tools=TOOLS, thinking=thinking) == whole
    return whole


def calls_of(message: ParsedMessage) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ("This is a test", [], "This is a test"),
        ('[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}', [ADD], None),
        ('[TOOL_CALLS]add{"a": 3.5, "b": 4}', [ADD], None),
        ('[TOOL_CALLS]now[ARGS]{}', [("now", {})], None),
        ('[TOOL_CALLS]add{"a": 3.5, "b": 4}[TOOL_CALLS]multiply{"a": 3, "b": 6}',
         [ADD, ("multiply", {"a": 3, "b": 6})], None),
        ('[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}\n\n[TOOL_CALLS]now[ARGS]{}', [ADD, ("now", {})], None),
        (f"hi{{hi[TOOL_CALLS]bash{json.dumps(SCRIPT)}", [("bash", SCRIPT)], "hi{hi"),
        ('Hello[TOOL_CALLS] [{"name": "add", "arguments":{"a": 3.5, "b": 4}}]', [ADD], "Hello"),
        ('[TOOL_CALLS]  [ {"name":"add" , "arguments" : {"a": 3.5, "b": 4} } ]', [ADD], None),
        ('[TOOL_CALLS] [{"arguments":{"name": "John Doe"}, "name": "get_age"}]', [("get_age", {"name": "John Doe"})],
         None),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 3.5, "b": 4}}, {"name": "now", "arguments": {}}]',
         [ADD, ("now", {})], None),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 3.5, "b": 4}, "id": "123456789"}]', [ADD], None),
        ('[TOOL_CALLS] [{"name": "add", "arguments":{"a": 3.5, "b": 4}}]\nextra trailing data', [ADD],
         "\nextra trailing data"),
        ('[TOOL_CALLS]bash[ARGS]{"command": "echo [TOOL_CALLS]add[ARGS]{}"}',
         [("bash", {"command": "echo [TOOL_CALLS]add[ARGS]{}"})], None),
        ("Write `[TOOL_CALLS]add[ARGS]{}` then.", [], "Write `[TOOL_CALLS]add[ARGS]{}` then."),
        ("Use [TOOL_CALLS] and <tool_call> in text", [], "Use [TOOL_CALLS] and <tool_call> in text"),
        ("usage: prog [ARGS] [THINK]", [], "usage: prog [ARGS] [THINK]"),
    ],
)  # fmt: skip
def test_calls_are_read_as_mistrals_own_tokenizers_write_them(
    text: str, calls: list[tuple[str, Any]], content: str | None
) -> None:
    message = read(text)
    assert (calls_of(message), message.content, message.violations) == (calls, content, ())


def test_the_id_that_a_version_writes_behind_the_name_is_the_calls() -> None:
    message = read('[TOOL_CALLS]add[CALL_ID]aB3dE6gH9[ARGS]{"a": 3.5, "b": 4}')
    assert calls_of(message) == [ADD]
    assert message.tool_calls[0].id == "aB3dE6gH9"


@pytest.mark.parametrize("thinking", [True, False])
def test_thoughts_are_split_off_in_front_of_text_and_calls(thinking: bool) -> None:
    message = read('[THINK]Four [a].[/THINK]So:[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}', thinking)
    assert (message.reasoning, message.content, calls_of(message)) == ("Four [a].", "So:", [ADD])
    assert message.violations == ()


@pytest.mark.parametrize(
    ("text", "kinds", "content"),
    [
        ("[TOOL_CALLS]now", ["unfinished_call"], "[TOOL_CALLS]now"),
        ("[TOOL_CALLS]now[ARGS]", ["unfinished_call"], "[TOOL_CALLS]now[ARGS]"),
        ("[TOOL_CALLS][ARGS]{}", ["malformed_call"], "[TOOL_CALLS][ARGS]{}"),
        ("[TOOL_CALLS] is a token", [], "[TOOL_CALLS] is a token"),
        ("[TOOL_CALLS]now[ARGS] I think", ["malformed_call"], "[TOOL_CALLS]now[ARGS] I think"),
        ("Next.add[ARGS]{}", ["malformed_call"], "Next.add[ARGS]{}"),
        ("[TOOL_CALLS]add[CALL_ID]" + "x" * 2000, ["malformed_call"], "[TOOL_CALLS]add[CALL_ID]" + "x" * 2000),
    ],
)
def test_what_is_no_call_stays_in_the_text_and_is_reported_if_one_was_meant(
    text: str, kinds: list[str], content: str
) -> None:
    message = read(text)
    assert message.tool_calls == ()
    assert [violation.kind for violation in message.violations] == kinds
    assert message.content == content


def test_a_call_that_is_cut_or_runs_into_the_next_one_is_reported_with_its_arguments_open() -> None:
    message = read('[TOOL_CALLS]add[ARGS]{"a": 3.5, [TOOL_CALLS]bash[ARGS]{"command": "ls')
    assert [call.arguments for call in message.tool_calls] == ['{"a": 3.5, ', '{"command": "ls']
    assert [(each.kind, each.index) for each in message.violations] == [("unfinished_call", 0), ("unfinished_call", 1)]


def test_the_tags_in_which_magistral_thought_at_first_are_reasoning_too() -> None:
    message = read('<think>\nAdd.\n</think>\n[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}')
    assert message.reasoning == "\nAdd."
    assert calls_of(message) == [ADD]
    assert read("<think>Why?</think>So.").content == "So."
    assert read("Write <think> first.").content == "Write <think> first."
