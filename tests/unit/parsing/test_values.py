"""What schemas ask of a value, beyond the conformance rows."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.parsing import GRAMMARS, coerce, parse
from tests.unit.parsing.formats import good_call

ROOT = {"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"type": "boolean"},
                  "code": {"type": ["string", "integer"]}}}  # fmt: skip
SCALARS = st.sets(st.sampled_from(["integer", "number", "boolean"]), min_size=1).map(sorted)
WRITTEN = st.text("0123456789+-_.eE ٣truefalsTF", max_size=8) | st.integers().map(str) | st.floats().map(str)


@pytest.mark.parametrize(
    ("value", "schema", "wanted"),
    [
        ("null", {"type": "string", "nullable": True}, None),
        ("null", {"type": "integer", "nullable": True}, None),
        ("x", {"nullable": True}, "x"),
        ("[1]", {"type": "sequence"}, [1]),
        ("7", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 7),
        ("x7", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "x7"),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "None"),
        ("7", {"$ref": "#/$defs/n"}, 7),
        ("true", {"$ref": "#/$defs/a~1b"}, True),
        ("7", {"$ref": "#/$defs/loop"}, "7"),
        ("7", {"$ref": "#/nowhere"}, "7"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("true", {"const": True}, True),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("[1]", {"type": ["object", "string"]}, "[1]"),
        ("7", {"type": "int128"}, 7),
        ("1.5", {"type": "Numeric"}, 1.5),
        ("true", {"type": "binary"}, True),
        ("9 to 5", {"type": "interval"}, "9 to 5"),
        ("1e999", {"type": "number"}, "1e999"),
        ("[1e999]", {"type": "array"}, "[1e999]"),
        ('[{"old": "a\n\tb"}]', {"type": "array"}, [{"old": "a\n\tb"}]),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ],
)
def test_a_value_becomes_what_its_schema_says_or_stays_text(value: str, schema: dict[str, Any], wanted: Any) -> None:
    got = coerce(value, schema, ROOT)
    assert got == wanted
    assert type(got) is type(wanted)


@given(WRITTEN, SCALARS)
def test_where_a_string_is_allowed_too_no_text_loses_anything(text: str, types: list[str]) -> None:
    """`007`, `1_000` and `1.10` are other texts as numbers."""
    value = coerce(text, {"type": ["string", *types]})
    assert value == text if isinstance(value, str) else json.dumps(value) == text


@given(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x % 1))
def test_a_number_or_a_boolean_as_json_writes_it_is_one_beside_a_string(value: object) -> None:
    assert coerce(json.dumps(value), {"type": ["string", "number", "boolean"]}) == value


@pytest.mark.parametrize("text", ["007", "+4917", "1_000", "1.10", "٣"])
def test_where_only_a_number_is_allowed_it_may_be_written_freely(text: str) -> None:
    assert coerce(text, {"type": "number"}) == float(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "anyOf": [{"pattern": "^[0-9]+$"}, {"type": "integer"}]},
        {"type": "string", "oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "string", "$ref": "#/$defs/code"},
        {"allOf": [{"type": "string"}, {"$ref": "#/$defs/code"}]},
        {"allOf": [{"$ref": "#/$defs/code"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}]},
        {"$ref": "#/$defs/code", "enum": ["7", "8"]},
        {"type": ["string", "integer"], "const": "7"},
        {"anyOf": [{"$ref": "#/$defs/code"}, {"$ref": "#/$defs/code"}], "type": "string"},
    ],
)
def test_a_value_has_a_type_that_all_of_its_schema_allows(schema: dict[str, Any]) -> None:
    assert coerce("7", schema, ROOT) == "7"


@pytest.mark.parametrize(
    ("schema", "text", "wanted"),
    [
        ({"type": "number", "anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", 7),
        ({"nullable": True, "allOf": [{"$ref": "#/$defs/n"}]}, "null", None),
        ({"nullable": True, "allOf": [{"$ref": "#/$defs/n"}]}, "7", 7),
        ({"anyOf": [{}, {"type": "null"}]}, "null", None),
        ({"type": "integer", "allOf": [{"type": "string"}]}, "7", 7),  # nothing fits: what stands first
        ({"allOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}, "7", 7),
    ],
)
def test_types_that_hold_at_once_are_those_common_to_all(schema: dict[str, Any], text: str, wanted: Any) -> None:
    assert coerce(text, schema, ROOT) == wanted


@pytest.mark.parametrize("union", [5, True, "x", None, {"type": "integer"}, [5, None, "x"]])
@pytest.mark.parametrize("name", ["anyOf", "oneOf", "allOf", "enum", "$ref", "type"])
def test_a_schema_that_is_none_says_nothing(name: str, union: Any) -> None:
    assert coerce("text", {name: union}) == "text"


def test_a_schema_that_refers_to_itself_many_times_is_read_once() -> None:
    root = {"$defs": {"tree": {"anyOf": [{"$ref": "#/$defs/tree"}] * 40 + [{"type": "integer"}]}}}
    assert coerce("7", {"$ref": "#/$defs/tree"}, root) == 7


def test_references_may_mean_the_whole_document_and_be_percent_encoded() -> None:
    assert coerce('{"a": 1}', {"$ref": "#"}, {"type": "object"}) == {"a": 1}
    assert coerce("7", {"$ref": "#/%24defs/n"}, ROOT) == 7


@pytest.mark.parametrize("properties", [5, [], None, {"city": {"anyOf": 5}}, {"city": 5}])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_tools_with_odd_schemas_break_no_parser(grammar: str, properties: Any) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"properties": properties}}}]
    text = good_call(grammar, "Bern", 0)
    assert [call.name for call in parse(text, grammar, tools).tool_calls] == ["get_weather"]
    nameless = text.replace("functions.get_weather:0", "0")
    assert len(parse(nameless, grammar, tools).tool_calls) <= 1
