"""What schemas ask of a value, beyond the conformance rows."""

from typing import Any

import pytest

from serve.parsing import coerce

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
