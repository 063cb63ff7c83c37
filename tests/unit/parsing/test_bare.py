"""Calls without tags around each: where they begin, what is none, and Python's notation as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.parsing import ParsedMessage, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import TOOLS


def read(text: str, tools: list[dict[str, Any]] | None = TOOLS) -> ParsedMessage:
    whole = parse(text, "bare", tools)
    assert all(
        cases.stream([text[:place], text[place:]], grammar="bare", tools=tools) == whole for place in range(len(text))
    )
    assert cases.stream(text, grammar="bare", tools=tools) == whole
    return whole


CALL = '{"name": "get_weather", "parameters": {"city": "Bern"}}'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, None),
        ('{"type": "function", "name": "get_weather", "parameters": {"city": "Bern"}}', None),
        ('{"parameters": {"city": "Bern"}, "name": "get_weather"}', None),
        (f"\n\n{CALL}\nDone.", "Done."),
        ('[{"name": "get_weather", "arguments": {"city": "Bern"}}]', None),
        (f"Look: <|python_tag|>{CALL}", "Look: "),
        (f"<|tool_call|> [{CALL}]", None),
        (f"functools[{CALL}]", None),
        (f"<tool_calls>[\n  {CALL}\n]</tool_calls>", None),
        (f"I look it up.\n\n{CALL}", "I look it up.\n\n"),
        ("[get_weather(city='Bern')]", None),
        ("To determine it:\n[get_weather(city='Bern')]\nWait.", "To determine it:\nWait."),
        ('<|python_start|>[get_weather(city="Bern")]<|python_end|>', None),
        ("<|tool_call_start|>[get_weather(city='Bern')]<|tool_call_end|>On it.", "On it."),
        ("<function_calls>\nget_weather(city='Bern')\n</function_calls>", None),
    ],
)
def test_a_call_is_read_where_the_answer_begins_or_behind_a_marker(text: str, content: str | None) -> None:
    message = read(text)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        ("get_weather", {"city": "Bern"})
    ]
    assert (message.content, message.violations) == (content, ())


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL}; {CALL}", f"{CALL};{CALL}", f"{CALL} ;\n{CALL}", f"[{CALL}, {CALL}]", f"<|python_tag|>{CALL}\n{CALL}",
        f"[{CALL}]\n[{CALL}]", "[get_weather(city='Bern');]\n[get_weather(city='Bern')]",
        "[get_weather(city='Bern'), get_weather(city='Bern')]",
        "<function_calls>get_weather(city='Bern')\nget_weather(city='Bern')</function_calls>",
    ],
)  # fmt: skip
def test_several_calls_follow_one_another(text: str) -> None:
    message = read(text)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"city": "Bern"}] * 2
    assert (message.content, message.violations) == (None, ())


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42, "name": "get_weather"}', '{"name": "Ann", "age": 7}', '{"name": "Ann"} and', '{"name": "Ann',
        "{}", "{", "[1, 2]", '[{"city": "Bern"}]', '[{"name": "Ann"}, {"name": "Eve"}] both', "[1] says so.",
        "[text](https://example.org)", "[f(x) for x in range(3)]", "[get_weather", f"As in {CALL}",
        f"For example:\n```json\n{CALL}\n```", "As\n[other(a=1)]", "`\n[get_weather()]`", "Two:\n[1]\n{2}",
        '{"name": "Ann", "age": 7}\n{"name": "Eve", "age": 8}', "void f()\n{\n}",
        "Call functools[0] or see <function_calls> in it.",
    ],
)  # fmt: skip
def test_an_answer_that_only_begins_like_a_call_stays_as_it_is(text: str) -> None:
    assert read(text) == ParsedMessage(None, text, (), ())


def test_nothing_is_a_call_without_a_marker_where_no_tools_are_declared() -> None:
    assert read(CALL, tools=None).content == CALL
    assert read("[f(a=1)]", tools=None).content == "[f(a=1)]"


@pytest.mark.parametrize(
    ("python", "value"),
    [
        ("None", None), ("true", True), ("-1.50", -1.5), ("+3", 3), ("07", 7), ("1_000", 1000), (".5", 0.5),
        (r"'it\'s \x41\u00e9\n\d'", "it's Aé\n\\d"), (r"r'\d+'", r"\d+"), (r"'\ud83d\ude00'", "😀"), ("b'z'", "z"),
        ("'''a 'b'\n'''", "a 'b'\n"), ('""', ""), ("(1, 2,)", [1, 2]), ("[', ', ']']", [", ", "]"]),
        ("{'a': {'b': [True, None]}}", {"a": {"b": [True, None]}}),
    ],
)  # fmt: skip
def test_a_value_in_pythons_notation_becomes_json(python: str, value: object) -> None:
    message = read(f"[f(a={python})]")
    assert json.loads(message.tool_calls[0].arguments) == {"a": value}
    assert {violation.kind for violation in message.violations} == {"unknown_tool"}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), VALUES, max_size=4), st.data())
def test_arguments_that_python_prints_come_back(arguments: dict[str, Any], data: st.DataObject) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    text = f"<|tool_call_start|>[get_weather({written})]<|tool_call_end|>"
    place = data.draw(st.integers(0, len(text)))
    message = cases.stream([text[:place], text[place:]], grammar="bare", tools=TOOLS)
    assert json.loads(message.tool_calls[0].arguments) == arguments
    assert message.content is None


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ("'sed -n '360,450p' common.py'", "sed -n '360,450p' common.py"),
        ('"echo "hi" && ls"', 'echo "hi" && ls'),
        ("'it's'", "it's"),
    ],
)
def test_a_quote_without_its_backslash_is_kept_and_reported(written: str, command: str) -> None:
    message = read(f"<|tool_call_start|>[f(command={written}, n=1)]<|tool_call_end|>")
    assert json.loads(message.tool_calls[0].arguments) == {"command": command, "n": 1}
    assert "drifted_marker" in {violation.kind for violation in message.violations}


@pytest.mark.parametrize("text", ["[f(a='x", "[f(a=1", "[f(a=[1)]", "<|python_start|>[f(a=1<|python_end|>"])
def test_a_call_that_lacks_its_end_is_reported(text: str) -> None:
    assert "unfinished_call" in {violation.kind for violation in read(text).violations}


@pytest.mark.parametrize("text", ["[f(a={1, 2})]", "<|python_start|>[f('x')]<|python_end|>", "[f(a=1 + 1)]"])
def test_what_json_cannot_say_is_reported(text: str) -> None:
    assert {"malformed_call", "malformed_arguments"} & {violation.kind for violation in read(text).violations}
