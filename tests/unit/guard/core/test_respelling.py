"""A value that fails its schema is read as it was meant, where another spelling of it fits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import call, calls, calls_of, chunk, read, through, tools_request

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, Outcome
from serve.guard.core.respelling import respelt
from serve.guard.core.schema import Schema

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "edits": {"type": "array", "items": {"type": "object", "required": ["old"]}},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "dry": {"type": "boolean"},
        "options": {"type": "object", "properties": {"depth": {"type": "integer"}}},
    },
    "required": ["path"],
}
BODY = tools_request(tools=[{"type": "function", "function": {"name": "edit", "parameters": EDIT}}])
SOUND: dict[str, Any] = {
    "path": "[1]", "edits": [{"old": 'a "quoted" word', "new": "[2]"}], "limit": 7, "dry": True, "options": {"depth": 2}
}  # fmt: skip


def answered(arguments: str, size: int = 1000, live: bool = False, **settings: Any) -> tuple[dict[str, Any], Guard]:
    guard = Guard(GuardConfig(**{"reruns": 0, **settings}), BODY, live=live)
    pieces = [arguments[place : place + size] for place in range(0, len(arguments), size)]
    deltas = [call(0, "edit", ""), *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
    return read(through(guard, [*(chunk(calls(each)) for each in deltas), chunk({}, "tool_calls")])), guard


@given(st.sets(st.sampled_from([*SOUND]), min_size=1), st.sampled_from([None, 2]), st.booleans())
def test_every_value_that_is_no_text_may_be_written_as_one(
    names: set[str], indent: int | None, ascii_only: bool
) -> None:
    given = {
        name: json.dumps(value, indent=indent) if name in names - {"path"} else value for name, value in SOUND.items()
    }
    message, guard = answered(json.dumps(given, indent=indent, ensure_ascii=ascii_only))
    assert calls_of(message) == [("edit", SOUND)]
    assert guard.outcome is (Outcome.RESCUED if names - {"path"} else Outcome.CLEAN)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("live", [False, True])
def test_it_is_taken_out_of_its_quotes_however_it_is_sent(size: int, live: bool) -> None:
    given = json.dumps({**SOUND, "edits": json.dumps(SOUND["edits"])})
    message, _ = answered(given, size, live)
    assert calls_of(message) == [("edit", SOUND)]


def test_nothing_else_of_the_document_changes() -> None:
    text = '{ "path": "x",\n "limit" : "70" , "n": 1.50, "edits":"[ {\\"old\\": 1e3} ]\\n"}'
    message, _ = answered(text)
    assert message["calls"][0]["arguments"] == '{ "path": "x",\n "limit" : 70 , "n": 1.50, "edits":[ {"old": 1e3} ]}'


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "x", "edits": "a"},
        {"path": "x", "edits": "['a']"},
        {"path": "x", "edits": '[{"old": 1}'},
        {"path": "x", "edits": '[{"old": 1}] '[:-2] + "]]"},
        {"path": "x", "edits": '[{"new": 1}]'},
        {"path": "x", "limit": "NaN"},
        {"path": "x", "limit": "1.5"},
        {"path": "x", "limit": '"7"'},
        {"path": "x", "limit": "007"},
        {"edits": "[]"},
    ],
)
def test_what_is_not_exactly_the_value_that_the_schema_wants_is_no_rescue(arguments: Any) -> None:
    _, guard = answered(json.dumps(arguments))
    assert guard.verdicts[0].outcome is Outcome.SCHEMA_MISMATCH


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("space", ["", " ", "\n"])
def test_arguments_that_are_a_text_themselves_are_what_the_text_holds(space: str, size: int, live: bool) -> None:
    message, guard = answered(space + json.dumps(space + json.dumps(SOUND)) + space, size, live)
    assert calls_of(message) == [("edit", SOUND)]
    assert guard.verdicts[0].outcome is Outcome.RESCUED


def test_a_value_of_theirs_may_be_a_text_as_well() -> None:
    message, _ = answered(json.dumps(json.dumps({"path": "x", "limit": "7"})))
    assert calls_of(message) == [("edit", {"path": "x", "limit": 7})]


@pytest.mark.parametrize("schema", [{}, True, {"type": "object"}])
def test_arguments_are_taken_out_of_a_text_whatever_the_schema_accepts(schema: Any) -> None:
    guard = Guard(GuardConfig(reruns=0), tools_request(tools=[{"type": "function", "function": {
        "name": "edit", "parameters": schema}}]))  # fmt: skip
    deltas = [call(0, "edit", json.dumps('{"path": "x"}'))]
    assert calls_of(read(through(guard, [chunk(calls(*deltas)), chunk({}, "tool_calls")]))) == [("edit", {"path": "x"})]


@pytest.mark.parametrize(
    "text",
    ["{hello world}", "[1]", "7", "ls -la", '{"path": "x"', '{"limit": 7}', json.dumps('{"path": "x"}'), "\ud800"],
)
def test_a_text_that_holds_no_sound_arguments_is_no_call(text: str) -> None:
    message, guard = answered(json.dumps(text))
    assert calls_of(message) == []
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON


@pytest.mark.parametrize("end", [1, 9, -1])
def test_a_text_that_is_cut_is_cut(end: int) -> None:
    _, guard = answered(json.dumps(json.dumps(SOUND))[:end])
    assert guard.verdicts[0].outcome is Outcome.TRUNCATED


def test_it_stays_in_its_quotes_where_rescue_is_off() -> None:
    _, guard = answered('{"path": "x", "limit": "7"}', rescue=False)
    assert guard.verdicts[0].outcome is Outcome.SCHEMA_MISMATCH


def test_it_stays_in_its_quotes_where_the_schema_wants_another_text() -> None:
    schema = {"properties": {"n": {"type": ["string", "integer"], "pattern": "^x"}}}
    assert (mismatch := Schema(schema, strict=False).mismatch({"n": "7"})) == "$.n: pattern"
    assert not [*respelt('{"n": "7"}', mismatch)]


@given(
    st.recursive(
        st.integers() | st.text('a.[0]:"\\ ', max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a.[0]: ", max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    st.data(),
)
def test_a_place_that_a_path_names_is_found_or_none_is(value: Any, data: st.DataObject) -> None:
    where = data.draw(st.text("$a.[0]: ", max_size=8))
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    for keyword in ("type", "enum", "required"):
        for reading in respelt(text, f"{where}: {keyword}"):
            assert json.loads(reading) != value or keyword == "enum"


# From reports; what the schema of `FILTER` makes of them.
SPELLINGS = [
    ('{"ns": "x", "limit": null, "format": null}', {"ns": "x"}),  # ZenRows/zenrows-mcp#23, vierisid/jarvis#199
    ('{"limit":null,"ns":"x"}', {"ns": "x"}),
    ('{"ns": "x", "limit": "null"}', {"ns": "x"}),  # anthropics/claude-code#95239
    ('{"ns": "x", "limit": "None" , "at": ""}', {"ns": "x"}),  # can1357/oh-my-pi#2983
    ('{"ns": "x", "deep": {"all": null, "n": 1}}', {"ns": "x", "deep": {"n": 1}}),
    ('{"ns": "x", "format": "MARKDOWN"}', {"ns": "x", "format": "markdown"}),  # basher83/Zammad-MCP#201
    ('{"ns": "x", "level": "high"}', {"ns": "x", "level": "HIGH"}),
    ('{"ns": "x", "deep": {"all": "True"}}', {"ns": "x", "deep": {"all": True}}),
    ('{"ns": 7.50}', {"ns": "7.50"}),
    ('{"ns": {"a":1, "b": [1.0]}}', {"ns": '{"a":1, "b": [1.0]}'}),  # shekohex/opencode-google-antigravity-auth#11
    ('{"properties": {"ns": "x"}}', {"ns": "x"}),  # cloudwego/eino#385
    ('{"name": "filter", "arguments": {"ns": "x", "limit": "3"}}', {"ns": "x", "limit": 3}),  # Kilo-Org/kilocode#3282
]
FILTER = {
    "type": "object",
    "properties": {
        "ns": {"type": "string"},
        "limit": {"type": "integer"},
        "at": {"type": "string", "pattern": "^a="},
        "format": {"enum": ["markdown", "json"]},
        "level": {"enum": ["HIGH", "LOW"]},
        "deep": {"type": "object", "properties": {"all": {"type": "boolean"}, "n": {"type": "integer"}}},
    },
    "required": ["ns"],
    "additionalProperties": False,
}


def filtered(arguments: str, parameters: Any = FILTER, **settings: Any) -> tuple[list[tuple[str, Any]], Outcome]:
    tool = {"type": "function", "function": {"name": "filter", "parameters": parameters}}
    guard = Guard(GuardConfig(**{"reruns": 0, **settings}), tools_request(tools=[tool]))
    message = read(through(guard, [chunk(calls(call(0, "filter", arguments))), chunk({}, "tool_calls")]))
    return calls_of(message), guard.verdicts[0].outcome


@pytest.mark.parametrize(("given", "meant"), SPELLINGS)
def test_a_spelling_that_models_are_known_for_is_what_they_mean(given: str, meant: Any) -> None:
    assert filtered(given) == ([("filter", meant)], Outcome.RESCUED)


def test_an_argument_left_out_as_null_is_left_out_however_many_there_are() -> None:
    names = [f"option_{number}" for number in range(30)]
    parameters = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    assert filtered(json.dumps(dict.fromkeys(names)), parameters) == ([("filter", {})], Outcome.RESCUED)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"ns": null}',
        '{"ns": ["ls", "-la"]}',  # a command is no JSON
        '{"ns": "x", "format": "Markdown file"}',
        '{"ns": "x", "limit": true}',
        '{"properties": {"ns": "x"}, "ns": "y"}',
        '{"properties": {"n": "x"}}',
        '{"arguments": {"ns": "x"}, "input": {"ns": "y"}}',
    ],
)
def test_what_has_several_readings_or_none_is_left_to_a_rerun(arguments: str) -> None:
    assert filtered(arguments) == ([("filter", json.loads(arguments))], Outcome.SCHEMA_MISMATCH)


def test_what_the_schema_takes_stays_as_it_is() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}, "b": {}}}
    given = '{"a": null, "b": null, "arguments": {"a": "MARKDOWN"}}'
    assert filtered(given, parameters) == ([("filter", json.loads(given))], Outcome.CLEAN)
