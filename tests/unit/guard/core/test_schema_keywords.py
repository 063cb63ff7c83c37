"""Our own keywords agree with the library's, count their work, and never write down what they judge."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.schema import Schema
from serve.guard.core.schema_budget import Budget, UnjudgedError

AMPLE = 60.0  # seconds


class CountingBudget(Budget):
    """A budget without an end that counts steps."""

    def __init__(self) -> None:
        super().__init__(AMPLE)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


class Silent(dict[str, Any]):
    """An object that must not be written down."""

    def __repr__(self) -> str:
        raise AssertionError("the value is written down")


class SilentList(list[Any]):
    """A list that must not be written down."""

    def __repr__(self) -> str:
        raise AssertionError("the value is written down")


LEAVES = st.sampled_from([None, True, False, 0, 1, 1.0, 2, -3, "", "a", "ab", "b"])
NAMES = st.sampled_from(["a", "b", "ab"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
COUNTS = st.integers(0, 3)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "minLength": COUNTS,
            "maxLength": COUNTS,
            "minItems": COUNTS,
            "maxItems": COUNTS,
            "minProperties": COUNTS,
            "maxProperties": COUNTS,
            "minContains": COUNTS,
            "maxContains": COUNTS,
            "minimum": COUNTS,
            "uniqueItems": st.booleans(),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
            "dependentSchemas": by_name,
            "properties": by_name,
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "propertyNames": inner,
            "prefixItems": some,
            "items": inner,
            "contains": inner,
            "unevaluatedItems": inner,
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.just("#/$defs/d"),
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), schemas_of, max_leaves=6)


@given(schema=schemas_of(SCHEMAS), defined=SCHEMAS, value=VALUES)
def test_what_the_library_accepts_is_accepted_and_nothing_else(schema: Any, defined: Any, value: Any) -> None:
    whole = {**schema, "$defs": {"d": True if "$ref" in str(defined) else defined}}  # no loop
    expected = jsonschema.Draft202012Validator(whole).is_valid(value)
    assert (Schema(whole, strict=True, budget=Budget(AMPLE)).mismatch(value) is None) is expected


@given(schema=SCHEMAS, listed=st.lists(SCHEMAS, max_size=3), value=st.lists(VALUES, max_size=4))
def test_lists_of_items_in_draft_7_are_judged_as_the_library_does(schema: Any, listed: Any, value: Any) -> None:
    whole = {"$defs": {"d": False}, "items": [*listed, {"title": "x"}], "additionalItems": schema, "contains": schema}
    expected = jsonschema.Draft7Validator(whole).is_valid(value)
    assert (Schema(whole, strict=True, budget=Budget(AMPLE)).mismatch(value) is None) is expected


MANY = 1_000
ROWS = {"a": list(range(MANY))}
NAMED = {f"k{number}": number for number in range(MANY)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"items": True}}}, ROWS),
        ({"properties": {"a": {"contains": False}}}, ROWS),
        ({"properties": {"a": {"contains": {}, "maxContains": MANY}}}, ROWS),
        ({"properties": {"a": {"prefixItems": [True] * MANY}}}, ROWS),
        ({"properties": {"a": {"unevaluatedItems": {"type": "integer"}}}}, ROWS),
        ({"properties": {"a": {"uniqueItems": True}}}, ROWS),
        ({"properties": {"a": {"items": [True], "additionalItems": {}}}}, ROWS),
        ({"properties": {"a": {"items": [True], "contains": False}}}, ROWS),
        ({"propertyNames": True}, NAMED),
        ({"additionalProperties": {}}, NAMED),
        ({"unevaluatedProperties": True}, NAMED),
        ({"unevaluatedProperties": False}, NAMED),
        ({"properties": dict.fromkeys(NAMED, True)}, NAMED),
        ({"patternProperties": {"x": True}}, NAMED),
        ({"dependentSchemas": dict.fromkeys(NAMED, True)}, NAMED),
        ({"dependentRequired": {name: ["k0"] for name in NAMED}}, NAMED),
        ({"anyOf": [False] * MANY}, {}),
        ({"oneOf": [False] * MANY}, {}),
        ({"allOf": [True] * MANY}, {}),
    ],
)
def test_each_item_name_and_schema_counts_whatever_is_asked_of_it(schema: Any, value: Any) -> None:
    budget = CountingBudget()
    Schema(schema, strict=True, budget=budget).mismatch(value)
    assert budget.steps >= MANY


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"properties": {"a": {"type": "string"}}},
        {"properties": {"a": False}},
        {"properties": {"a": {"maxItems": 1}}},
        {"properties": {"a": {"minItems": 9}}},
        {"properties": {"a": {"prefixItems": [{}], "items": False}}},
        {"properties": {"a": {"items": [{}], "additionalItems": False}}},
        {"properties": {"a": {"items": [{}], "contains": {"type": "string"}}}},
        {"properties": {"a": {"contains": {"type": "string"}}}},
        {"properties": {"a": {"contains": {}, "minContains": 9}}},
        {"properties": {"a": {"contains": {}, "maxContains": 1}}},
        {"properties": {"a": {"enum": [1]}}},
        {"maxProperties": 0},
        {"minProperties": 9},
        {"not": {"type": "object"}},
        {"anyOf": [{"type": "string"}, False]},
        {"oneOf": [{"type": "object"}, {}]},
        {"const": 3},
        {"additionalProperties": False},
        {"unevaluatedProperties": False},
        {"dependentSchemas": {"a": False}},
        {"allOf": [False]},
    ],
)
def test_no_error_writes_the_value_down(schema: Any) -> None:
    value = Silent(a=SilentList([1, 2, Silent()]))
    assert Schema(schema, strict=True).mismatch(value) is not None


@pytest.mark.parametrize(
    ("schema", "value", "mismatch"),
    [
        ({"properties": {"a": False}}, {"a": 1}, "$.a: false"),
        ({"properties": {"a": {"items": False}}}, {"a": [1]}, "$.a: items"),
        ({"properties": {"a": {"contains": {}, "maxContains": 1}}}, {"a": [1, 2]}, "$.a: maxContains"),
        ({"properties": {"a": {"contains": {}, "minContains": 3}}}, {"a": [1, 2]}, "$.a: minContains"),
        ({"properties": {"a": {"contains": {"type": "null"}}}}, {"a": [1, 2]}, "$.a: contains"),
        ({"items": {"items": {"type": "null"}}}, [[None], [None, 1]], "$[1][1]: type"),
    ],
)
def test_a_mismatch_is_told_with_its_place(schema: Any, value: Any, mismatch: str) -> None:
    assert Schema(schema, strict=True).mismatch(value) == mismatch


LONG = "a/" * 2_000
CHAIN: Any = {"type": "object"}
for _ in range(200):
    CHAIN = {"$id": "a/" * 16, "not": CHAIN}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": f"#/{LONG}"},
        {"$id": f"http://x/{LONG}", "properties": {"a": {"$ref": "b"}}},
        {"$defs": {"q": CHAIN}, "properties": {"a": {"$ref": "nowhere"}}},
        {"$defs": {f"d{n}": {"$id": "a" * 400} for n in range(400)}, "properties": {"a": {"$ref": "nowhere"}}},
        {"type": ["string"] * 8},
    ],
)
def test_references_that_take_long_to_join_are_not_followed(schema: Any) -> None:
    with pytest.raises(UnjudgedError, match="not a valid schema"):
        Schema(schema, strict=True).mismatch({"a": 1})


def test_fifty_ids_of_ordinary_length_are_followed() -> None:
    base = "https://example.com/schemas/"
    parts = {f"d{number}": {"$id": f"{base}d{number}.json", "type": "integer"} for number in range(50)}
    schema = {"$id": f"{base}root.json", "$defs": parts, "properties": {"a": {"$ref": "d7.json"}}}
    assert Schema(schema, strict=True, budget=Budget(AMPLE)).mismatch({"a": 1}) is None
    assert Schema(schema, strict=True, budget=Budget(AMPLE)).mismatch({"a": "x"}) == "$.a: type"
