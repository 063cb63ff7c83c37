"""Small schemas, and values for them, that cost a naive validator seconds, ages or the process."""

from __future__ import annotations

import json
from typing import Any

from lab.attacks.bombs import chain, doubling

SLOW = "^(x|xx)*[^x]$"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def nested(link: str, depth: int) -> Any:
    """Returns JSON within JSON."""
    return json.loads(link * depth + "{}" + "}" * depth)


TALL = nested('{"a":', 60)
MANY = {f"k{n}": n for n in range(20_000)}
BOMBS: dict[str, tuple[Any, Any]] = {
    "allOf": (doubling("allOf", 40), {}),
    "anyOf": (doubling("anyOf", 40), 1),
    "oneOf": (doubling("oneOf", 40), {}),
    "another draft inside": ({"allOf": [{"$schema": DRAFT_4, **doubling("allOf", 40)}]}, {}),
    "conditions": (chain(lambda ref: {"if": ref, "then": ref, "else": ref}, 40), {}),
    "negations": (chain(lambda ref: {"not": {"allOf": [ref, {"not": ref}]}}, 40), {}),
    "dependent schemas": (chain(lambda ref: {"dependentSchemas": {"a": ref, "b": ref}}, 40), {"a": 1, "b": 1}),
    "members": (chain(lambda ref: {"allOf": [{"properties": {"a": ref}}, {"properties": {"a": ref}}]}, 40), TALL),
    "itself, twice": ({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]}, TALL),
    "dynamic references": ({"$dynamicAnchor": "n", "allOf": [{"properties": {"a": {"$dynamicRef": "#n"}}}] * 2}, TALL),
    "ways within ways": (nested('{"anyOf":[{"type":"null"},{"type":"null"}],"not":', 60), {}),
    "unevaluated": ({**doubling("allOf", 40), "unevaluatedProperties": False}, {"a": 1}),
    "unevaluated, nested": (chain(lambda ref: {"allOf": [ref], "unevaluatedProperties": {"type": "integer"}}, 40),
                             {"a": 1}),
    "unevaluated, of many": ({"allOf": [{"properties": {f"k{n}": True}} for n in range(500)],
                              "unevaluatedProperties": False}, MANY),
    "a long chain and a tall value": (
        {"$defs": {**chain(lambda ref: {"allOf": [ref]}, 500)["$defs"], "d500": {"properties": {"a": {"$ref": "#"}}}},
         "$ref": "#/$defs/d0"}, TALL),
    "anchors": ({"$defs": {f"a{n}": {"$anchor": f"a{n}"} for n in range(5000)}, "$ref": "#a9"}, {}),
    "a long id": ({"$id": "http://x/" + "a/" * 50_000, "$defs": {f"d{n}": {"$id": f"b{n}"} for n in range(400)}}, {}),
    "patterns": ({"allOf": [{"patternProperties": {f"^{n}|{SLOW}": True}} for n in range(300)]}, MANY),
    "a pattern that repeats": ({"pattern": "((a{1,900}){1,900}){1,900}"}, "a" * 1_000),
    "a pattern for a long text": ({"pattern": "((a{1,30}){1,30})y"}, "a" * 1_000_000),
    "a pattern that searches": ({"pattern": r"^(?:(?=[a-z]*[0-9])[a-z])*$"}, "a" * 20_000),
    "many errors": ({"anyOf": [{"required": [f"n{n}" for n in range(2000)]}] * 50}, {}),
    "an enumeration of objects": ({"items": {"enum": [[n] for n in range(5000)]}}, [[-1]] * 5_000),
    "a mixed enumeration": ({"items": {"enum": [None, True, *range(100_000)]}}, [-1] * 5_000),
    "wide": ({"allOf": [{}] * 200_000}, {}),
    "unique objects": ({"uniqueItems": True}, [{"a": [n, {}]} for n in range(100_000)]),
    "unique rows": ({"items": {"uniqueItems": True}}, [[[n], [n, n]] * 7 for n in range(20_000)]),
    "items in items": (nested('{"items":', 60), nested('{"a":', 60)),
    "multiples": ({"items": {"multipleOf": 0.01}}, [n + 0.5 for n in range(100_000)]),
    "long numbers": ({"items": {"maximum": 5.5}}, [int("7" * 300)] * 20_000),
    "many members": ({"additionalProperties": {"type": "string"}}, {**MANY, **{f"x{n}": "" for n in range(300_000)}}),
}  # fmt: skip
