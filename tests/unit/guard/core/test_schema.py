"""Schemas of clients: applied where they can be, and harmless where they can't."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from time import thread_time
from typing import Any

import pytest

from lab.attacks.schema_costs import BOMBS
from serve.guard.core import schema as schema_module
from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import Budget, UnjudgedError

AMPLE = 60.0  # seconds
SLOW = "^(x|xx)*[^x]$"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def mismatch(schema: Any, value: Any, *, strict: bool = False) -> str | None:
    return Schema(schema, strict=strict, budget=Budget(AMPLE)).mismatch(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", 123]},
        {"properties": {"city": {"pattern": "("}}},
        {"properties": {"city": {"pattern": r"\bB"}, "days": {"pattern": "(?=2)"}}},
        {"properties": {"city": {"pattern": "a{99999999999}"}}},
        {"properties": {"city": {"minLength": "x"}}},
        {"properties": {"days": {"multipleOf": 0}}},
        {"properties": {"days": {"maximum": float("inf")}}},
        {"properties": [1]},
        {"required": "abc"},
        {"enum": ["half a character: \ud83d"]},
        {"dependentRequired": {"a": "b"}},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"city": {"$ref": "#/$defs/nowhere"}}},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$id": "http://[", "$ref": "#/$defs/a"},
        {"$id": "http://x/", "properties": {"city": {"$ref": "../" * 1_000}}},
        {"$defs": {f"d{n}": {"$id": "a/" * 200} for n in range(400)}, "properties": {"a": {"$ref": "b"}}},
        3,
        "object",
        [],
    ],
)
def test_a_schema_that_can_not_be_applied_is_said_to_be_unjudged(schema: Any) -> None:
    with pytest.raises(UnjudgedError):
        mismatch(schema, {"city": "Bern", "days": 2}, strict=True)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\ud800": "a"}, json.loads("[" * 900 + "]" * 900)])
def test_a_value_that_the_validator_can_not_read_is_unjudged_or_judged_and_never_an_error(value: Any) -> None:
    with suppress(UnjudgedError):
        mismatch({"properties": {"a": {"pattern": "a"}}, "items": {"items": {"$ref": "#"}}}, value)


@pytest.mark.parametrize("schema", [None, True, {"type": "object"}, {"$schema": DRAFT_7}, {"$schema": ["odd"]}])
def test_an_object_is_accepted(schema: Any) -> None:
    assert mismatch(schema, {"city": "Bern", "days": 2}, strict=True) is None


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"required": ["a"]}, {}, "$: required"),
        ({"properties": {"a": {"pattern": "^[0-9]+$"}}}, {"a": "x1"}, "$.a: pattern"),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}, "$.ab: type"),
        ({"additionalProperties": False}, {"a": 1}, "$: additionalProperties"),
        ({"properties": {"b": {}}, "additionalProperties": {"type": "string"}}, {"a": 1, "b": 1}, "$.a: type"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1, "b": 1}, "$: unevaluatedProperties"),
        (
            {"properties": {"a": {"prefixItems": [{}], "unevaluatedItems": False}}},
            {"a": [1, 2]},
            "$.a: unevaluatedItems",
        ),
        ({"type": "object", "properties": {"a": {"enum": [1]}}}, {"a": 2}, "$.a: enum"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, {"a": 2}, "$.a: anyOf"),
        ({"items": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}, [1, 3], "$[1]: oneOf"),
        ({"if": {"type": "object"}, "then": {"required": ["a"]}}, {}, "$: required"),
        ({"properties": {"a": False}}, {"a": 1}, "$.a: false"),
        ({"properties": {"a": {"contains": {"type": "null"}}}}, {"a": [1, 2]}, "$.a: contains"),
        ({"items": {"items": {"type": "null"}}}, [[None], [None, 1]], "$[1][1]: type"),
        ({"$schema": DRAFT_4, "properties": {"a": {"type": "integer"}}}, {"a": 1.0}, "$.a: type"),
        ({"properties": {"a": {"enum": []}}}, {"a": 1}, "$.a: false"),
    ],
)
def test_a_mismatch_names_its_place_and_its_keyword(schema: Any, value: Any, expected: str) -> None:
    assert mismatch(schema, value) == expected


def test_a_mismatch_quotes_nothing_of_the_value() -> None:
    schema = {"anyOf": [{"properties": {"key": {"const": "sesame", "pattern": "^x", "maxLength": 3}}}]}
    assert "secret" not in (mismatch(schema, {"key": "secret"}) or "secret")


ONE_MEANING = {
    "a list of items": ({"items": [{"type": "string"}], "additionalItems": False}, ["a"], ["a", 1]),
    "definitions": ({"definitions": {"x": {"type": "null"}}, "items": {"$ref": "#/definitions/x"}}, [None], [1]),
    "components": ({"components": {"schemas": {"x": {"type": "null"}}}, "items": {"$ref": "#/components/schemas/x"}},
                   [None], [1]),
    "draft 4's id": ({"id": "http://x/y", "items": {"$ref": "z"}, "definitions": {"z": {"id": "z", "type": "null"}}},
                     [None], [1]),
    "an id as a name": ({"definitions": {"a": {"id": "a", "items": {"$ref": "#/definitions/b"}}, "b": {"type": "null"}},
                         "$ref": "#/definitions/a"}, [None], [1]),
    "a pointer to a neighbour": (
        {"properties": {"a": {"items": {"type": "null"}}, "b": {"$ref": "#/properties/a/items"}}}, {}, {"b": 1}),
    "dependencies": ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, {"a": 1, "b": 1}, {"c": 1}),
    "an excluded limit": ({"minimum": 3, "exclusiveMinimum": True}, 4, 3),
    "an included limit": ({"maximum": 3, "exclusiveMaximum": False}, 3, 4),
    "nullable": ({"properties": {"a": {"type": "string", "nullable": True}}}, {"a": None}, {"a": 1}),
    "nullable, an enumeration": ({"enum": ["a"], "type": "string", "nullable": True}, None, "b"),
    "nullable, a reference": ({"items": {"$ref": "#/$defs/x", "nullable": True}, "$defs": {"x": {"type": "object"}}},
                              [None], [1]),
    "nullable, a way of ways": ({"allOf": [{"type": "object"}], "nullable": True}, None, 1),
    "nullable, in draft 7": ({"$schema": DRAFT_7, "items": {"$ref": "#/definitions/x", "nullable": True},
                              "definitions": {"x": {"type": "object"}}}, [None], [1]),
    "nullable and a pointer through it": (
        {"properties": {"a": {"type": "object", "nullable": True, "properties": {"c": {"type": "null"}}},
                        "b": {"$ref": "#/properties/a/properties/c"}}}, {"a": None, "b": None}, {"b": 1}),
    "upper case": ({"type": "STRING"}, "a", 1),
    "another language's type": ({"items": {"type": "int"}}, [1], ["a"]),
    "any type": ({"properties": {"a": {"type": "any"}}, "required": ["a"]}, {"a": [1]}, {}),
    "a type that is none": ({"properties": {"a": {"type": "file"}}, "required": ["a"]}, {"a": 1}, {}),
    "required by a boolean": ({"properties": {"a": {"type": "string", "required": True}}}, {}, {"a": 1}),
    "nothing for a keyword": ({"properties": {"a": {"type": "string", "enum": None}}, "required": None}, {}, {"a": 1}),
    "a name twice": ({"required": ["a", "a"], "enum": [{"a": 1}, {"a": 1}]}, {"a": 1}, {}),
    "siblings of a reference": ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, 3, 2),
    "no siblings in draft 7": ({"$schema": DRAFT_7, "$ref": "#/definitions/x", "minimum": 3,
                                "definitions": {"x": {"type": "integer"}}}, 2, "a"),
    **{f"no {name} beside a reference": (
        {"$schema": uri, name: "http://x/a/", "items": {name: "http://x/", "$ref": "n"}, "definitions": {
            "n": {name: "http://x/n", "type": "string"}, "a": {name: "n", "type": "null"}}},
        [None], ["a"]) for name, uri in (("id", DRAFT_4), ("$id", DRAFT_7))},
    "patterns and others": ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"x-a": 1}, {"y": 1}),
    "an anchor": ({"$defs": {"a": {"$anchor": "n", "type": "null"}}, "items": {"$ref": "#n"}}, [None], [1]),
    "a dynamic anchor": ({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}}, [[[]]], [[1]]),
    "ids of fifty": ({"$id": "https://example.com/s/root.json", "properties": {"a": {"$ref": "d7.json"}}, "$defs": {
        f"d{n}": {"$id": f"https://example.com/s/d{n}.json", "type": "null"} for n in range(50)}}, {}, {"a": 1}),
    "itself": ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"a": {}}}, {"a": {"b": 1}}),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "sound", "broken"), ONE_MEANING.values(), ids=ONE_MEANING)
def test_what_has_one_meaning_only_is_read_as_it_is_meant(schema: Any, sound: Any, broken: Any) -> None:
    assert mismatch(schema, sound) is None
    assert mismatch(schema, broken) is not None


FORMATS = {
    "date": ("2026-11-25", "25.11.2026"),
    "time": ("10:00:00Z", "ten"),
    "date-time": ("2026-11-25T10:00:00Z", "2026-11-25"),
    "duration": ("P1D", "a day"),
    "email": ("a@example.com", "a"),
    "hostname": ("example.com", "-"),
    "ipv4": ("10.0.0.1", "10.0.0.256"),
    "ipv6": ("::1", "10.0.0.1"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123"),
}


@pytest.mark.parametrize(("name", "sound", "broken"), [(name, *values) for name, values in FORMATS.items()])
def test_a_format_counts_where_the_request_is_strict(name: str, sound: str, broken: str) -> None:
    schema = {"properties": {"a": {"type": "string", "format": name}}}
    assert mismatch(schema, {"a": sound}, strict=True) is None
    assert mismatch(schema, {"a": broken}, strict=True) == "$.a: format"
    assert mismatch(schema, {"a": broken}) is None


@pytest.mark.parametrize("name", ["uri", "regex", "int32", "idn-email", "my own"])
def test_other_formats_say_nothing(name: str) -> None:
    assert mismatch({"format": name}, "(", strict=True) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": SLOW}}},
        {"patternProperties": {SLOW: False}},
        {"patternProperties": {SLOW: True}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {SLOW: True}}], "unevaluatedProperties": False},
    ],
)
def test_a_pattern_that_other_engines_never_end_is_judged(schema: Any) -> None:
    text = "x" * 60 + "!x"  # Python's own engine would take longer than the age of the universe
    Schema(schema, strict=True).mismatch({"a": text, text: 1})


def test_a_pattern_that_has_too_many_ways_is_unjudged_and_no_mismatch() -> None:
    schema = {"pattern": "^(?:(?=a)a|a)*b$"}
    assert mismatch({"pattern": r"^(?!.*secret)[a-z ]+$"}, "a plain text") is None
    assert mismatch({"pattern": r"^(?!.*secret)[a-z ]+$"}, "a secret text") == "$: pattern"
    for way in (schema, {"anyOf": [schema, {"type": "null"}]}):
        with pytest.raises(UnjudgedError):
            mismatch(way, "a" * 60)


EMAIL = r"^(?!\.)(?!.*\.\.)([\w'+\-.]*)[\w+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"  # much like zod's


@pytest.mark.parametrize("pattern", [EMAIL, r"^.{3,900}$"], ids=["tries", "regular"])
def test_a_long_text_is_judged_beside_one_that_has_a_costly_pattern(pattern: str) -> None:
    address = {"type": "string", "pattern": pattern}
    members = {"to": {"type": "array", "items": address}, "body": {"type": "string"}, "draft": {"type": "boolean"}}
    schema = {"type": "object", "properties": members, "additionalProperties": False}
    mail = {"to": ["a@b.co"], "body": "to whom it may concern, " * 2_000}
    assert Schema(schema, strict=True).mismatch(mail) is None
    assert Schema(schema, strict=True).mismatch({**mail, "to": ["a@b.co", "x"]}) == "$.to[1]: pattern"
    assert Schema(schema, strict=True).mismatch({**mail, "draft": "no"}) == "$.draft: type"
    for long in ({**mail, "to": [mail["body"]]}, {mail["body"]: ""}):
        with pytest.raises(UnjudgedError):
            Schema({**schema, "propertyNames": address}, strict=True).mismatch(long)


@pytest.mark.parametrize(("schema", "value"), BOMBS.values(), ids=BOMBS)
def test_no_schema_takes_the_loop_for_long(schema: Any, value: Any) -> None:
    """A fraction of a second where each would take seconds, ages or the process; `bench.schemas` measures it."""
    gc.disable()  # what thousands of tests have left takes longer to go through than any of these
    try:
        began_s = thread_time()
        checked = Schema(schema, strict=True)
        for _ in range(3):
            with suppress(UnjudgedError):
                checked.mismatch(value)
        assert thread_time() - began_s < 1.0
    finally:
        gc.enable()


def test_one_tools_schema_can_not_leave_the_others_unjudged() -> None:
    budget = Budget()
    bombs = [BOMBS[name] for name in ("allOf", "unevaluated", "patterns")]
    hostile = [(Schema(schema, strict=True, budget=budget), value) for schema, value in bombs]
    plain = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    modest = Schema(plain, strict=True, budget=budget)
    for _ in range(50):
        for schema, value in hostile:
            with pytest.raises(UnjudgedError):
                schema.mismatch(value)
    assert modest.mismatch({"a": "x"}) is None
    assert modest.mismatch({}) == "$: required"


def test_a_schema_among_others_gets_half_of_what_is_left_and_alone_all_of_it() -> None:
    alone = Budget(1.0)
    alone.schemas = 1
    alone.admit(0.9)
    shared = Budget(1.0)
    shared.schemas = 2
    shared.admit(0.4)
    with pytest.raises(UnjudgedError, match="too much work"):
        shared.admit(0.9)


def test_what_work_has_really_taken_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.guard.core.schema_cost.thread_time", iter((5.0, 5.7)).__next__)
    budget = Budget(1.0)
    with budget:
        budget.admit(0.9)
    with pytest.raises(UnjudgedError, match="too much work"):
        budget.admit(0.4)
    budget.admit(0.2)


MAKERS: dict[str, Callable[[int], Any]] = {
    "tiny": lambda n: {"const": n},
    "small": lambda n: {"type": "object", "properties": {f"p{n % 40}": {"const": n}}},
    "nested": lambda n: {"allOf": [{"anyOf": [{}, {"not": {}}, {"const": n}]}] * 20},
    "enumerations": lambda n: {"enum": list(range(n * 1_000, n * 1_000 + 500))},
    "long texts": lambda n: {"description": f"{n}" + "x" * 2_000},
    "wide": lambda n: {"properties": {f"{n}_{m}": {"type": "string", "description": "d" * 20} for m in range(40)}},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_memory_of_compiled_schemas_is_bounded_whatever_they_are(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 128 * 1024
    monkeypatch.setattr(schema_module, "_CACHE_BYTES", limit)
    mismatch(make(0), {})  # what is made once per process
    monkeypatch.setattr(schema_module, "_compiled", cache := schema_module._Cache())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 250):
            mismatch(make(number), {})
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size_bytes <= limit
    assert after - before < 1.2 * limit


def test_a_giant_schema_does_not_drive_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_CACHE_BYTES", 128 * 1024)
    monkeypatch.setattr(schema_module, "_compiled", cache := schema_module._Cache())
    small = {"type": "object"}
    budget = Budget(AMPLE)
    kept = cache.get(small, False, budget)
    for number in range(9):
        mismatch({"enum": list(range(number, 2_000))}, {})
    assert cache.get(small, False, budget) is kept
