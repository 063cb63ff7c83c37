"""Schemas of clients: applied where they can be, and harmless where they can't."""

from typing import Any

import pytest

from serve.guard.core.schema import Schema

SLOW = "^(x|xx)*[^x]$"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", 123]},
        {"properties": {"city": {"pattern": "("}}},
        {"$ref": "https://example.com/schema.json"},
        {"properties": {"city": {"$ref": "#/$defs/nowhere"}}},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        None,
        3,
    ],
)
def test_a_schema_that_can_not_be_applied_accepts_everything(schema: Any) -> None:
    assert Schema(schema, strict=True).mismatch({"city": "Bern", "days": 2}) is None


@pytest.mark.parametrize(
    ("schema", "value", "keyword"),
    [
        ({"required": ["a"]}, {}, "required"),
        ({"properties": {"a": {"pattern": "^[0-9]+$"}}}, {"a": "x1"}, "pattern"),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}, "type"),
        ({"additionalProperties": False}, {"a": 1}, "additionalProperties"),
        ({"type": "object", "properties": {"a": {"enum": [1]}}}, {"a": 2}, "enum"),
    ],
)
def test_a_mismatch_is_told_by_its_keyword(schema: Any, value: Any, keyword: str) -> None:
    found = Schema(schema, strict=True).mismatch(value)
    assert found is not None
    assert found.endswith(f": {keyword}")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": SLOW}}},
        {"patternProperties": {SLOW: True}},
        {"patternProperties": {SLOW: True}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {SLOW: True}}], "unevaluatedProperties": False},
    ],
)
def test_a_pattern_that_takes_for_ever_is_given_up_and_accepts(schema: Any) -> None:
    text = "x" * 60  # Python's own engine would take longer than the age of the universe
    assert Schema(schema, strict=True).mismatch({"a": text, text: 1}) is None
