"""What schemas ask of a value, beyond the conformance rows."""

from typing import Any

import pytest

from serve.parsing import GRAMMARS, coerce, parse
from tests.unit.parsing.formats import good_call

ROOT = {"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"type": "boolean"}}}


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
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ],
)
def test_a_value_becomes_what_its_schema_says_or_stays_text(value: str, schema: dict[str, Any], wanted: Any) -> None:
    got = coerce(value, schema, ROOT)
    assert got == wanted
    assert type(got) is type(wanted)


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
