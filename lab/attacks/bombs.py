"""Small or dense requests that cost a naive gateway seconds.

A schema is a row of its JSON and of the arguments of a call that it judges, both as text: `json.dumps` would not encode
all of them. What is expected of each: nobody else is held up, and the call arrives as it is or the client has an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def doubling(keyword: str, count: int, ref: str = "$ref", name: str = "d", pointer: str = "d") -> Schema:
    """Returns a schema whose naive evaluation takes two to the power of `count` steps.

    Args:
        keyword: That holds two references to the next definition.
        count: Of definitions.
        ref: Keyword of a reference.
        name: What names of definitions begin with.
        pointer: The same as a reference writes it.
    """
    defs = {f"{name}{n}": {keyword: [{ref: f"#/$defs/{pointer}{n + 1}"}] * 2} for n in range(count)}
    return {"$defs": {**defs, f"{name}{count}": {"type": "object"}}, ref: f"#/$defs/{pointer}0"}


def chain(link: Callable[[Any], Any], count: int) -> Schema:
    """Returns a schema each of whose definitions leads to the next."""
    defs = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(count)}
    return {"$defs": {**defs, f"d{count}": {"type": "object"}}, "$ref": "#/$defs/d0"}


_DOUBLINGS = 26
_DEPTH = 5_000
_DIGITS = 5_000


def _text(depth: int) -> str:
    """Returns a deep schema as text: `json.dumps` would not encode it."""
    return '{"properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth


BOMBS: dict[str, tuple[str, str]] = {
    "doubling": (json.dumps(doubling("allOf", _DOUBLINGS)), '{"a":1}'),
    "pattern": (json.dumps({"properties": {"a": {"pattern": "^(a+)+$"}}}), json.dumps({"a": "a" * 40 + "!"})),
    "long pattern": (json.dumps({"properties": {"a": {"pattern": "(a|b?c)" * 40_000}}}), '{"a":"x"}'),
    "repetition": (json.dumps({"properties": {"a": {"pattern": "a{99999999999}"}}}), '{"a":"x"}'),
    "many patterns": (json.dumps({"properties": {f"p{n}": {"pattern": "^(a|a)*$"} for n in range(40)}}),
                      json.dumps({f"p{n}": "a" * 30 + "!" for n in range(40)})),
    "depth": (_text(_DEPTH), '{"a":1}'),
    "width": (json.dumps({"properties": {f"p{n}": {"type": "string", "minLength": 1} for n in range(20_000)}}), "{}"),
    "long number": ('{"properties":{"a":{"multipleOf":0.1}}}', '{"a":' + "7" * 400 + "}"),
    "odd identifier": ('{"$id":"http://[","type":"object"}', "{}"),
    "endless reference": ('{"$ref":"#"}', '{"a":1}'),
}  # fmt: skip
_MANY = 2_000
_ROWS = json.dumps({"a": list(range(_MANY))})
_MEMBERS = json.dumps({f"k{n}": n for n in range(_MANY)})


# Keywords whose cost is not that of the schema's size: each is looked up, joined or applied again and again.
KEYWORDS: dict[str, tuple[str, str]] = {
    "doubling by anyOf": (json.dumps(doubling("anyOf", _DOUBLINGS)), "{}"),
    "doubling by oneOf": (json.dumps(doubling("oneOf", _DOUBLINGS)), "{}"),
    "doubling by if": (json.dumps(chain(lambda ref: {"if": ref, "then": ref, "else": ref}, _DOUBLINGS)), "{}"),
    "a chain of ids": (json.dumps({"$ref": "urn:c0", "$defs": {
        f"d{n}": {"$id": f"urn:c{n}", "$ref": f"urn:c{n + 1}"} for n in range(_MANY)}}), "{}"),
    "a chain of anchors": (json.dumps({"$ref": "#c0", "$defs": {
        f"d{n}": {"$anchor": f"c{n}", "$ref": f"#c{n + 1}"} for n in range(_MANY)}}), "{}"),
    "relative ids": (json.dumps({"$id": "http://conform.example/a/", "$defs": {
        f"d{n}": {"$id": "../" * n + "b"} for n in range(400)}, "properties": {"a": {"$ref": "../../b"}}}), '{"a":1}'),
    "ids around a long one": (json.dumps({"$id": "http://conform.example/" + "a/" * 20_000, "$defs": {
        f"d{n}": {"$id": f"b{n}"} for n in range(400)}, "properties": {"a": {"$ref": "b1"}}}), '{"a":1}'),
    "many references": (json.dumps({"$defs": {"n": {"type": "integer"}}, "properties": {
        f"k{n}": {"$ref": "#/$defs/n"} for n in range(_MANY)}}), _MEMBERS),
    "dynamic references": (json.dumps({"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]}), "{}"),
    "unevaluated properties": (json.dumps({"allOf": [{"properties": {f"k{n}": True}} for n in range(500)],
                                           "unevaluatedProperties": False}), _MEMBERS),
    "unevaluated items": (json.dumps({"properties": {"a": {
        "anyOf": [{"contains": {"const": n}} for n in range(100)], "unevaluatedItems": False}}}), _ROWS),
    "contains": (json.dumps({"properties": {"a": {"contains": {"contains": {"const": 1}}, "minContains": _MANY}}}),
                 json.dumps({"a": [list(range(100))] * 100})),
    "unique items": (json.dumps({"properties": {"a": {"uniqueItems": True}}}),
                     json.dumps({"a": [{"b": [n]} for n in range(_MANY)]})),
    "dependent names": (json.dumps({"dependentRequired": {f"k{n}": [f"k{m}" for m in range(100)] for n in range(100)}}),
                        _MEMBERS),
    "names": (json.dumps({"propertyNames": {"enum": [f"k{n}" for n in range(_MANY)]}}), _MEMBERS),
    "names by pattern": (json.dumps({"patternProperties": {r"^(\w+\s?)*$": {}}}), json.dumps({"a" * 40 + "!": 1})),
    "types": (json.dumps({"type": ["string"] * 10_000}), "{}"),
    "colliding numbers": (json.dumps({"properties": {"a": {"enum": [n * (2**61 - 1) for n in range(_MANY)]}}}),
                          '{"a":1}'),
    "remote reference": ('{"$ref":"http://203.0.113.7:1/schema"}', "{}"),
}  # fmt: skip
ARGUMENTS: dict[str, str] = {
    "digits": '{"a":' + "7" * _DIGITS + "}",
    "brackets": '{"a":' + "[" * 2_000 + "]" * 2_000 + "}",
    "cut brackets": '{"a":' + "[" * 100_000,
    "cut numbers": '{"a":[' + "1," * 400_000,
    "cut objects": '{"a":[' + '{"b":{}},' * 100_000,
}
# Members that any request may have: nothing in them is wrong, and they are long to read.
MEMBERS: dict[str, str] = {
    "dense numbers": f'"enable_speculative": true, "x": [{",".join(["1"] * 2**20)}]',
    "5,000 digits": f'"x": {"7" * _DIGITS}, "seed": 1',
    "brackets": f'"x": {"[" * 500_000}{"]" * 500_000}',
    "escapes": f'"x": "{chr(92)}u0041{(chr(92) + "u0041") * 300_000}"',
    "members": '"x": {' + ",".join(f'"k{n}":0' for n in range(200_000)) + "}",
}
# Arguments of earlier calls of a conversation, which are no JSON.
HISTORIES: dict[str, list[str]] = {
    "one call of 1 MB, cut": ['{"a": "' + "x\\n" * 350_000],
    "10,000 calls, cut": ['{"a": [1, '] * 10_000,
    "a call of 50,000 brackets": ['{"a": ' + "[" * 50_000],
}
