"""Schemas of clients: applied where they can be, and harmless where they can't."""

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from serve.guard.core import schema as schema_module
from serve.guard.core import schema_budget
from serve.guard.core.schema import Schema
from serve.guard.core.schema_budget import Budget, UnjudgedError

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
        {"$id": "http://[", "$ref": "#/$defs/a"},
        {"properties": {"city": {"pattern": "a{99999999999}"}}},
        {"properties": {"city": {"pattern": "a" * 600}}},
        {"properties": {"days": {"multipleOf": 0}}},
        3,
        "object",
        [],
    ],
)
def test_a_schema_that_can_not_be_applied_is_said_to_be_unjudged(schema: Any) -> None:
    with pytest.raises(UnjudgedError):
        Schema(schema, strict=True).mismatch({"city": "Bern", "days": 2})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"a": 1, "b": "x"}),
        ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}),
        ({"unevaluatedProperties": {"type": "string"}}, {"a": "x"}),
        ({"properties": {"a": {"contains": {"type": "integer"}, "unevaluatedItems": False}}}, {"a": [1, 2]}),
    ],
)
def test_what_a_neighbouring_keyword_has_evaluated_is_accepted(schema: Any, value: Any) -> None:
    assert Schema(schema, strict=True, budget=Budget(60.0)).mismatch(value) is None


def test_ten_thousand_names_and_items_are_looked_up_at_once_and_not_in_a_list() -> None:
    """In a list the look-ups alone would be 200 million comparisons, and no step of the budget is between them."""
    names = {f"k{number}": 1 for number in range(20_000)}
    all_evaluated = {"allOf": [{"properties": {name: {} for name in names}}], "unevaluatedProperties": False}
    compared = CountingName.compared
    assert (
        Schema(all_evaluated, strict=True, budget=Budget(60.0)).mismatch(
            {CountingName(name): value for name, value in names.items()}
        )
        is None
    )
    assert CountingName.compared - compared < 20 * len(names)


class CountingName(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountingName.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize(
    "schema", [None, True, {"type": "object"}, {"$schema": "http://json-schema.org/draft-07/schema#"}]
)
def test_an_object_is_accepted(schema: Any) -> None:
    assert Schema(schema, strict=True).mismatch({"city": "Bern", "days": 2}) is None


@pytest.mark.parametrize(
    ("schema", "value", "keyword"),
    [
        ({"required": ["a"]}, {}, "required"),
        ({"properties": {"a": {"pattern": "^[0-9]+$"}}}, {"a": "x1"}, "pattern"),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}, "type"),
        ({"additionalProperties": False}, {"a": 1}, "additionalProperties"),
        ({"properties": {"b": {}}, "additionalProperties": {"type": "string"}}, {"a": 1, "b": 1}, "type"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1, "b": 1}, "unevaluatedProperties"),
        ({"allOf": [{"additionalProperties": {"type": "string"}}], "unevaluatedProperties": False}, {"a": 1}, "type"),
        ({"properties": {"a": {"prefixItems": [{}], "unevaluatedItems": False}}}, {"a": [1, 2]}, "unevaluatedItems"),
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
def test_a_pattern_that_takes_for_ever_is_given_up(schema: Any) -> None:
    text = "x" * 60  # Python's own engine would take longer than the age of the universe
    with pytest.raises(UnjudgedError):
        Schema(schema, strict=True).mismatch({"a": text, text: 1})


def doubling(keyword: str, more: dict[str, Any]) -> dict[str, Any]:
    defs = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}", **more}] * 2} for n in range(24)}
    return {"$defs": {**defs, "d24": {"type": "object"}}, "$ref": "#/$defs/d0"}


DRAFT4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
BOMBS = {
    "allOf": doubling("allOf", {}),
    "oneOf": doubling("oneOf", {}),
    "another draft inside": {"allOf": [{**DRAFT4, **doubling("allOf", DRAFT4)}]},
    "unevaluated": {**doubling("allOf", {}), "unevaluatedProperties": False},
    "anchors": {"$defs": {f"a{n}": {"$anchor": f"a{n}"} for n in range(5000)}, "$ref": "#a9"},
    "patterns": {"allOf": [{"patternProperties": {f"^{n}|{SLOW}": True}} for n in range(100)]},
    "many errors": {"anyOf": [{"required": [f"n{n}" for n in range(2000)]}] * 50},
    "enumeration": {"anyOf": [{"enum": [[n] for n in range(5000)]}] * 50},
    "wide": {"allOf": [{}] * 200_000},
}


class Clock:
    """CPU time that passes with every look at it."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.mark.parametrize("schema", BOMBS.values(), ids=BOMBS)
def test_no_schema_takes_more_than_its_share_of_the_loop(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Work is counted in calls, and the budget in looks at the clock: a fast machine judges what a slow one gives up,
    # and neither decides the test. A million calls are some 60 ms; `python -m bench.attacks --only schema` times them.
    clock = Clock(1e-6)
    monkeypatch.setattr(schema_budget, "perf_counter", clock)
    monkeypatch.setattr(schema_budget, "thread_time", clock)
    budget, calls = Budget(), itertools.count()
    sys.setprofile(lambda _frame, event, _arg: event.endswith("call") and next(calls))
    try:
        for _ in range(3):
            with suppress(UnjudgedError):
                Schema(schema, strict=True, budget=budget).mismatch({"a": "x" * 60, "x" * 60: 1})
    finally:
        sys.setprofile(None)
    assert next(calls) < 1_000_000


def test_one_tools_schema_can_not_leave_the_others_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(20e-6)  # every step takes 20 us
    monkeypatch.setattr(schema_budget, "perf_counter", clock)
    monkeypatch.setattr(schema_budget, "thread_time", clock)
    budget = Budget()
    hostile = [Schema(bomb, strict=True, budget=budget) for bomb in (BOMBS["allOf"], BOMBS["oneOf"])]
    plain = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    modest = Schema(plain, strict=True, budget=budget)
    for _ in range(50):  # calls of the two, one after the other: each of them had its share once
        for each in hostile:
            with pytest.raises(UnjudgedError, match="too much work"):
                each.mismatch({})
    assert modest.mismatch({"a": "x"}) is None
    assert modest.mismatch({}) == "$: required"
    assert clock.now_s < 0.025, "all of it within the budget, but for a step or two"


def test_a_schema_alone_has_all_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(20e-6)
    monkeypatch.setattr(schema_budget, "perf_counter", clock)
    monkeypatch.setattr(schema_budget, "thread_time", clock)
    budget = Budget()
    Schema(None, strict=True, budget=budget)
    with pytest.raises(UnjudgedError):
        Schema(BOMBS["allOf"], strict=True, budget=budget).mismatch({})
    assert clock.now_s >= 0.015


MAKERS: dict[str, Callable[[int], Any]] = {
    "tiny": lambda n: {"const": n},
    "small": lambda n: {"type": "object", "properties": {f"p{n}": {"type": "string"}}},
    "nested": lambda n: {"allOf": [{"anyOf": [{}, {"not": {}}, {"const": n}]}] * 20},
    "enumerations": lambda n: {"enum": list(range(n * 1_000, n * 1_000 + 500))},
    "long texts": lambda n: {"description": f"{n}" + "x" * 2_000},
    "wide": lambda n: {"properties": {f"{n}_{m}": {"type": "string", "description": "d" * 20} for m in range(40)}},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_memory_of_compiled_schemas_is_bounded_whatever_they_are(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 512 * 1024
    monkeypatch.setattr(schema_module, "_CACHE_BYTES", limit)
    monkeypatch.setattr(schema_module, "_compiled", cache := schema_module._Compiled())
    Schema(make(0), strict=True, budget=Budget(60.0)).mismatch({})  # what is made once per process
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 1_000):
            Schema(make(number), strict=True, budget=Budget(60.0)).mismatch({})
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size_bytes <= limit
    assert after - before < 1.2 * limit


def test_a_giant_schema_does_not_drive_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_CACHE_BYTES", 64 * 1024)
    monkeypatch.setattr(schema_module, "_compiled", cache := schema_module._Compiled())
    small = {"type": "object"}
    Schema(small, strict=True).mismatch({})
    kept = cache.get(small)
    for number in range(9):
        Schema({"enum": list(range(number, 2_000))}, strict=True).mismatch({})
    assert cache.get(small) is kept
