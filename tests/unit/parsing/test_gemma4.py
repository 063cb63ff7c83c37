"""Gemma 4's calls: what its template writes and vLLM's tests say, and what damage makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.parsing import ParsedMessage, parse
from tests.unit.parsing import cases


def read(text: str) -> ParsedMessage:
    whole = parse(text, "gemma4")
    assert cases.stream(text, grammar="gemma4") == whole
    return whole


def call(arguments: str, name: str = "f") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("", {}),
        ('location:<|"|>Paris, France<|"|>', {"location": "Paris, France"}),
        ('name:<|"|>test<|"|>,count:42,active:true,score:3.14,off:false,none:null',
         {"name": "test", "count": 42, "active": True, "score": 3.14, "off": False, "none": None}),
        ('nested:{inner:<|"|>value<|"|>},list:[<|"|>a]b<|"|>,[<|"|>c<|"|>]],empty:{},no:[]',
         {"nested": {"inner": "value"}, "list": ["a]b", ["c"]], "empty": {}, "no": []}),
        ('outer:{inner:{<|"|>3<|"|>:<|"|>new text<|"|>}}', {"outer": {"inner": {"3": "new text"}}}),
        ('code:<|"|>if a < b {\n\t"x": \'\\n\'}<|"|>', {"code": "if a < b {\n\t\"x\": '\\n'}"}),
        ('a: -1 ,\n b:<|"|><|"|>', {"a": -1, "b": ""}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["f", "get-weather", "weather.get"])
def test_arguments_become_the_json_that_they_mean(arguments: str, meant: dict[str, Any], name: str) -> None:
    message = read(f"I look. {call(arguments, name)}")
    assert [(each.name, json.loads(each.arguments)) for each in message.tool_calls] == [(name, meant)]
    assert (message.content, message.violations) == ("I look. ", ())


def test_calls_that_share_a_block_and_words_without_quotes_are_read() -> None:
    message = read(call('a:<|"|>x<|"|>}call:g{b:light,c:[on,true]'))
    assert [(each.name, each.arguments) for each in message.tool_calls] == [
        ("f", '{"a": "x"}'), ("g", '{"b": "light", "c": ["on", true]}')]  # fmt: skip
    assert (message.content, [each.kind for each in message.violations]) == (None, ["drifted_marker"])


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ('a:weather in Bern<|"|>', {"a": "weather in Bern"}),
        ('a:5<|"|>,b:2', {"a": "5", "b": 2}),
        ('a:{c:Bern<|"|>},b:<|"|>x<|"|>', {"a": {"c": "Bern"}, "b": "x"}),
        ('a:[<|"|>x<|"|>,y z<|"|>]', {"a": ["x", "y z"]}),
    ],
)
def test_a_string_that_lacks_its_opening_quote_is_read(arguments: str, meant: dict[str, object]) -> None:
    message = read(call(arguments))
    assert [json.loads(each.arguments) for each in message.tool_calls] == [meant]
    assert [each.kind for each in message.violations] == ["drifted_marker"]


@pytest.mark.parametrize("arguments", ['a:Bern, Wabern<|"|>', 'a:Bern, b:2<|"|>', 'a:<|"|>x<|"|>y<|"|>'])
def test_a_string_without_its_opening_quote_that_may_hold_more_is_no_sound_one(arguments: str) -> None:
    kinds = {each.kind for each in read(call(arguments)).violations}
    assert kinds & {"malformed_call", "unfinished_call"}


def test_a_fault_of_a_later_call_in_a_block_stands_where_it_says() -> None:
    text = "<|tool_call>call:f{}call:g{a:1}call:h{b:"
    (fault,) = read(text).violations
    assert (fault.kind, fault.position, fault.raw) == ("unfinished_call", text.index("call:h"), "call:h{b:")


def test_thoughts_in_their_channel_are_split_off() -> None:
    message = read(f"<|channel>thought\nHm.\n<channel|>So:{call('a:1')}{call('b:2')}")
    assert (message.reasoning, message.content, message.violations) == ("Hm.", "So:", ())
    assert [each.arguments for each in message.tool_calls] == ['{"a": 1}', '{"b": 2}']


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel>thought\nA<channel|>So <|channel>thought\nB<channel|>it is.", "A\nB", "So it is."),
        ("So.<|channel>thought\n<channel|>", None, "So."),
        ("<|channel>thought\nA<channel|>So.<|channel>thought\n<channel|>", "A", "So."),
        (f"So. <|channel>thought\nA<channel|>{call('a:1')}<|channel>thought\nB<channel|>{call('a:1')}", "A\nB", "So. "),
        ("Say <|channel>thought first.", None, "Say <|channel>thought first."),
    ],
)
def test_thoughts_may_come_again_and_be_empty(text: str, reasoning: str | None, content: str) -> None:
    message = read(text)
    assert (message.reasoning, message.content, message.violations) == (reasoning, content, ())
    assert len(message.tool_calls) == text.count("call:")


@pytest.mark.parametrize(
    "arguments",
    [
        "a:Bern",
        "a:New York",
        'a:Bern<|"|>',
        'a:<|"|><|"|>Bern<|"|>',
        "a:1,",
        "a:",
        "a:1 b:2",
        "a",
        "a:[1}",
        ",a:1",
        "a:01",
        "a::1",
    ],
)
def test_what_is_not_as_the_template_writes_it_is_reported(arguments: str) -> None:
    assert read(call(arguments)).violations


@pytest.mark.parametrize("rest", ['location:<|"|>London', "location:", "", 'location:<|"|>London<|"|>'])
def test_a_call_that_is_cut_is_reported_with_its_arguments_open(rest: str) -> None:
    message = read(call(rest).removesuffix("}<tool_call|>"))
    assert [(each.kind, each.index) for each in message.violations] == [("unfinished_call", 0)]
    assert not message.tool_calls[0].arguments.endswith("}")


@pytest.mark.parametrize(
    "text", ["<|tool_call> is a token", "<|tool_call>calling", "`<|tool_call>call:f{}<tool_call|>`"]
)
def test_a_marker_in_prose_is_prose(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls, message.violations) == (text, (), ())
