"""Where the value of an argument ends: tags in strings of JSON, and what is none."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from serve.parsing import ParsedMessage, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import FORMATS, MARKERS, good_call, wrapped

DSML = ("deepseek_v32", "deepseek_v41")
UNTYPED = ("qwen3_coder", "mimo", "minimax_m2", "glm47", "hy_v3")
CUTS = st.lists(st.integers(0, 600), max_size=8)


class Json:
    """JSON in the place of a value. DSML's tags would say of a `str` that it is a string."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def tools(kind: Any) -> list[dict[str, Any]]:
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}, "list": {"type": kind}}
    return [{"name": "get_weather", "parameters": {"type": "object", "properties": properties}}]


def call(grammar: str, value: str, number: int = 1) -> str:
    """A call with a further argument behind the others, and one behind that."""
    form = FORMATS[grammar]
    assert form.argument is not None
    text = good_call(grammar, "Bern", number)
    place = text.rindex(form.end)
    return text[:place] + form.argument("list", Json(value)) + text[place:]


def read(grammar: str, text: str, kind: Any, cuts: list[int] | None = None) -> ParsedMessage:
    """Reads a text, and sees to it that it reads the same letter by letter and cut anywhere."""
    how: dict[str, Any] = {"grammar": grammar, "tools": tools(kind)}
    message = parse(text, **how)
    assert cases.stream(text, **how) == message
    places = sorted({0, len(text), *(cut for cut in cuts or () if cut < len(text))})
    assert cases.stream((text[a:b] for a, b in itertools.pairwise(places)), **how) == message
    return message


def arguments(message: ParsedMessage) -> list[Any]:
    return [json.loads(each.arguments) for each in message.tool_calls]


def documents(grammar: str) -> st.SearchStrategy[Any]:
    """JSON values whose strings quote the grammar's tags."""
    words = st.lists(st.sampled_from([*MARKERS[grammar], FORMATS[grammar].end]) | st.text(max_size=3), max_size=5)
    strings = words.map("".join)
    leaves = st.none() | st.booleans() | st.integers(-9, 9) | strings
    inner = st.recursive(
        leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(strings, each, max_size=3), max_leaves=6
    )
    return st.lists(inner, min_size=1, max_size=3)


@pytest.mark.parametrize("grammar", [*UNTYPED, *DSML])
@pytest.mark.parametrize("kind", ["array", ["array", "string"]])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), indent=st.sampled_from([None, 2]), cuts=CUTS)
def test_tags_in_strings_of_a_json_value_are_letters(
    grammar: str, kind: Any, data: st.DataObject, indent: int | None, cuts: list[int]
) -> None:
    value = data.draw(documents(grammar))
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    calls = call(grammar, text) + good_call(grammar, "Rome", 2)
    message = read(grammar, wrapped(grammar, calls), kind, cuts)
    assert arguments(message) == [{"city": "Bern", "days": 1, "list": value}, {"city": "Rome", "days": 2}]
    assert message.violations == ()


QUOTES: dict[str, Callable[[str], str]] = {
    "qwen3_coder": lambda inner: f"{inner}</parameter></function></tool_call><tool_call>",
    "mimo": lambda inner: f"{inner}</parameter><parameter=days>2</parameter>",
    "minimax_m2": lambda inner: f"{inner}</parameter></invoke></minimax:tool_call>",
    "glm47": lambda inner: f"{inner}</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
    "deepseek_v32": lambda inner: f"{inner}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
}


@pytest.mark.parametrize("grammar", QUOTES)
@pytest.mark.parametrize("kind", ["object", ["object", "null"]])
def test_a_whole_end_of_a_call_in_a_string_of_an_object_ends_nothing(grammar: str, kind: Any) -> None:
    value = {"old": QUOTES[grammar]("x"), "new": [QUOTES[grammar]('"')]}
    message = read(grammar, wrapped(grammar, call(grammar, json.dumps(value, ensure_ascii=False))), kind)
    assert arguments(message) == [{"city": "Bern", "days": 1, "list": value}]
    assert (message.content, message.violations) == (None, ())


@pytest.mark.parametrize("grammar", [*UNTYPED, *DSML])
@pytest.mark.parametrize("value", ['["abc', '{"a": "b', '["a", "b\\"]', '[1, "', '["a"b"]'])
def test_a_string_of_json_that_is_never_closed_swallows_nothing(grammar: str, value: str) -> None:
    calls = call(grammar, value) + good_call(grammar, "Rome", 2)
    message = read(grammar, wrapped(grammar, calls), "array")
    assert arguments(message) == [{"city": "Bern", "days": 1, "list": value}, {"city": "Rome", "days": 2}]
    assert [fault.kind for fault in message.violations] == ["ambiguous_value"]


@pytest.mark.parametrize("grammar", [*UNTYPED, *DSML])
def test_json_behind_a_string_that_is_never_closed_is_read_as_json(grammar: str) -> None:
    quoted = json.dumps([FORMATS[grammar].end])
    calls = call(grammar, '["abc') + call(grammar, quoted, 2)
    message = read(grammar, wrapped(grammar, calls), "array")
    assert [each["list"] for each in arguments(message)] == ['["abc', [FORMATS[grammar].end]]


def test_an_output_that_ends_in_a_string_of_json_leaves_the_call_open() -> None:
    whole = call("qwen3_coder", '["<function=x> and more')
    for place in range(whole.index("["), whole.index("more") + 4):
        message = read("qwen3_coder", whole[:place], "array")
        assert not message.tool_calls[0].arguments.endswith("}")
        assert message.violations[-1].kind == "unfinished_call"


WORDS = ['"', '"', '", "', "\\", '\\"', "\n", "x", "]", "}", ": ", ", ", '["', "[", "'"]


@pytest.mark.parametrize("grammar", UNTYPED)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), cuts=CUTS)
@example(data=None, cuts=[])
def test_what_begins_as_json_and_is_none_is_read_as_a_string_is(
    grammar: str, data: st.DataObject | None, cuts: list[int]
) -> None:
    form = FORMATS[grammar]
    assert form.argument is not None
    tags = [*MARKERS[grammar], form.end, form.argument("days", 3), form.argument("list", Json('["x')), "</parameter>\n"]
    drawn = st.lists(st.sampled_from([*tags, *WORDS, *WORDS]), max_size=14).map("".join)
    value = "[" + (data.draw(drawn) if data else f'"{form.end}"x')
    text = wrapped(grammar, call(grammar, value) + call(grammar, '["' + form.end, 2))
    message = read(grammar, text, ["array", "string"], cuts)
    as_string = read(grammar, text, "string")
    given_lists = [each.arguments for each in message.tool_calls]
    assume(given_lists == [each.arguments for each in as_string.tool_calls] or not any(map(holds_list, given_lists)))
    assert [each.arguments for each in as_string.tool_calls] == given_lists
    assert message.content == as_string.content
    sure = [fault for fault in message.violations if fault.kind != "ambiguous_value"]
    assert sure == [fault for fault in as_string.violations if fault.kind != "ambiguous_value"]


def holds_list(text: str) -> bool:
    try:
        return not isinstance(json.loads(text).get("list", ""), str)
    except ValueError:
        return False


@pytest.mark.parametrize("grammar", ["mimo", "glm47", "minimax_m2", "deepseek_v32"])
def test_an_output_full_of_strings_that_are_never_closed_is_read_in_linear_time(grammar: str) -> None:
    def steps(calls: int) -> int:
        text = wrapped(grammar, call(grammar, f'["x{FORMATS[grammar].end} y') * calls)
        count = 0

        def one_more(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(one_more)
        try:
            parse(text, grammar, tools("array"))
        finally:
            sys.setprofile(None)
        return count

    assert steps(400) < 6 * steps(100)
