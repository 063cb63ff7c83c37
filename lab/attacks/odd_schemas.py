# ruff: noqa: E501 - tables
"""Schemas that are odd or costly, and arguments of calls that are: rows as those of `lab.attacks.bombs`.

A row holds text where `json.dumps` would not encode what is meant.
"""

from __future__ import annotations

import json
from typing import Any

from lab.attacks.bombs import doubling


def _nested(keyword: str, depth: int, leaf: str = "{}") -> str:
    return f'{{"{keyword}":' * depth + leaf + "}" * depth


_BIG = json.dumps({f"k{n}": n for n in range(20_000)})
_ROWS = json.dumps({"a": list(range(50_000))})
SCHEMAS: dict[str, tuple[Any, Any]] = {
    "doubling by escaped pointers": (doubling("allOf", 24, name="a~1b~0 %20/", pointer="a~01b~00%20%2520~1"), {}),
    "doubling by $dynamicRef": (doubling("allOf", 24, "$dynamicRef"), {}),
    "doubling by dependentSchemas": (
        {"$defs": {f"d{n}": {"dependentSchemas": {"a": {"$ref": f"#/$defs/d{n + 1}"}},
                             "if": {"$ref": f"#/$defs/d{n + 1}"}, "then": {"$ref": f"#/$defs/d{n + 1}"}}
                   for n in range(24)} | {"d24": {}}, "$ref": "#/$defs/d0"}, {"a": 1}),
    "a loop of anchors": (
        {"$defs": {"a": {"$anchor": "a", "$ref": "#b"}, "b": {"$anchor": "b", "$ref": "#a"}}, "$ref": "#a"}, {}),
    "a loop of dynamic anchors": (
        {"$id": "urn:x", "$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}},
         "allOf": [{"$dynamicRef": "#n"}]}, {"a": {"a": {}}}),
    "$recursiveRef": ({"$recursiveAnchor": True, "properties": {"a": {"$recursiveRef": "#"}}}, {"a": {"a": 1}}),
    "a long $ref": ({"$id": "http://x/", "properties": {"a": {"$ref": "../" * 100_000}}}, {"a": 1}),
    "file $ref": ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, {"a": 1}),
    "a $ref to a $ref's sibling": ({"$ref": "#/properties/a", "properties": {"a": {"$ref": "#"}}}, {"a": 1}),
    "a $ref that is a number": ({"properties": {"a": {"$ref": 7}}}, {"a": 1}),
    "a $ref of 100 kB": ({"$ref": "#/" + "a/" * 50_000}, {}),
    "a $ref into a text": ({"$ref": "#/title/0", "title": "x"}, {}),
    "$schema that is a list": ({"$schema": ["x"], "type": "object"}, {}),
    "$schema of draft 3 within": ({"properties": {"a": {"$schema": "http://json-schema.org/draft-03/schema#",
                                                       "pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "!"}),
    "pattern properties, a bomb": ({"patternProperties": {"^(a+)+$": {}, "^(a|a)*$": {}}}, {"a" * 40 + "!": 1}),
    "pattern properties, 2,000": ({"patternProperties": {f"^x{n}": {} for n in range(2_000)}}, _BIG),
    "pattern properties, additional": ({"patternProperties": {"(a*)*b": {}}, "additionalProperties": False},
                                       {"a" * 60: 1}),
    "additional properties of 20,000": ({"additionalProperties": {"type": "string"}}, _BIG),
    "unevaluated properties of 20,000": ({"allOf": [{"properties": {f"k{n}": {}}} for n in range(500)],
                                "unevaluatedProperties": False}, _BIG),
    "unevaluated, nested": (_nested("unevaluatedProperties", 60, '{"anyOf":[{},{},{}]}'), {"a": {"a": {"a": 1}}}),
    "unevaluated items of 50,000": ({"properties": {"a": {"prefixItems": [{}] * 500, "unevaluatedItems": False,
                                                "anyOf": [{"contains": {"const": n}} for n in range(100)]}}}, _ROWS),
    "property names": ({"propertyNames": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}, {"a" * 60: 1, "b" * 60: 2}),
    "property names of 20,000": ({"propertyNames": {"maxLength": 3}}, _BIG),
    "contains, 50,000": ({"properties": {"a": {"contains": {"type": "string"}, "minContains": 10**6}}}, _ROWS),
    "contains nothing": ({"properties": {"a": {"contains": False}}}, _ROWS),
    "contains anything": ({"properties": {"a": {"contains": True, "maxContains": 10**6}}}, _ROWS),
    "items of any kind": ({"properties": {"a": {"items": True}}}, _ROWS),
    "a text that is an object": ({"anyOf": [{"type": "string"}] * 200}, _BIG),
    "too many properties": ({"anyOf": [{"maxProperties": 1}] * 200}, _BIG),
    "dependent names, 40,000": ({"dependentRequired": {f"k{n}": [f"k{m}" for m in range(100)] for n in range(400)}}, _BIG),
    "minContains that is a number of 400 digits": ('{"properties":{"a":{"contains":{},"minContains":' + "9" * 400
                                                   + "}}}", {"a": [1]}),
    "maxContains that is 1e999": ('{"properties":{"a":{"contains":{},"maxContains":1e999}}}', {"a": [1]}),
    "if/then nests": (_nested("if", 900, '{"type":"object"}'), {}),
    "not nests": (_nested("not", 900), {}),
    "items nests": (_nested("items", 30), {"a": 1}),
    "a tower too deep": (_nested("not", 60_000), {}),
    "an enumeration of 30,000": ({"properties": {"a": {"enum": [f"v{n}" for n in range(30_000)]}}}, {"a": "w"}),
    "an enumeration of big values": ({"properties": {"a": {"enum": [list(range(2_000))] * 15}}}, {"a": [1] * 2_000}),
    "a constant of 100 kB": ({"properties": {"a": {"const": {"b": ["x" * 100_000]}}}}, {"a": {"b": ["x" * 100_000]}}),
    "unique items, 50,000": ({"properties": {"a": {"uniqueItems": True}}}, _ROWS),
    "unique items, nested": ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[{"b": [n, {}]}] for n in
                                                                                 range(8_000)]}),
    "multipleOf 1e-300": ({"properties": {"a": {"multipleOf": 1e-300}}}, '{"a":' + "7" * 300 + "}"),
    "multipleOf 0": ({"properties": {"a": {"multipleOf": 0}}}, {"a": 1}),
    "multipleOf 1e999": ('{"properties":{"a":{"multipleOf":1e999}}}', {"a": 1}),
    "maximum 1e999": ('{"properties":{"a":{"maximum":1e999}}}', {"a": 1}),
    "maximum of 5,000 digits": ('{"properties":{"a":{"maximum":' + "9" * 5_000 + "}}}", {"a": 1}),
    "maximum of 4,000 digits": ('{"properties":{"a":{"maximum":' + "9" * 4_000 + "}}}", {"a": 1.5}),
    "maxLength -1": ({"properties": {"a": {"maxLength": -1}}}, {"a": "x"}),
    "minLength that is text": ({"properties": {"a": {"minLength": "x"}}}, {"a": "x"}),
    "formats": ({"properties": {"a": {"format": "regex"}, "b": {"format": "date-time"}, "c": {"format": "idn-email"}}},
                {"a": "(" * 5_000, "b": "9" * 5_000, "c": "x" * 5_000}),
    "pattern with a look-behind": ({"properties": {"a": {"pattern": "(?<=(a{1,200})*)b"}}}, {"a": "a" * 300}),
    "pattern with a back reference": ({"properties": {"a": {"pattern": r"^(a*)*\1$"}}}, {"a": "a" * 60 + "!"}),
    "pattern, a recursion": ({"properties": {"a": {"pattern": "((?R)|a)*"}}}, {"a": "a" * 60}),
    "pattern of fuzzy matches": ({"properties": {"a": {"pattern": "(?:abcdefghij){e<=9}(?:klmnop){e<=6}"}}},
                                 {"a": "zyxwvutsrq" * 200}),
    "pattern of named lists": ({"properties": {"a": {"pattern": r"\L<x>"}}}, {"a": "x"}),
    "pattern of repeats in repeats": ({"properties": {"a": {"pattern": "((a{1,900}){1,900}){1,900}"}}}, {"a": "a" * 50}),
    "pattern of classes": ({"properties": {"a": {"pattern": r"[\p{L}--\p{Lu}&&\w]" * 20}}}, {"a": "ab" * 30}),
    "4,000 patterns": ({"properties": {f"p{n}": {"pattern": f"^{n}(a|b)*c{{1,9}}$"} for n in range(4_000)}},
                       {f"p{n}": "x" for n in range(4_000)}),
    "a schema that is true": ("true", {"a": 1}),
    "a schema that is false": ("false", {"a": 1}),
    "a schema that is a list": ("[]", {"a": 1}),
    "a schema that is text": ('"object"', {"a": 1}),
    "a schema that is a number": ("7", {"a": 1}),
    "a schema that is null": ("null", {"a": 1}),
    "properties that are a list": ({"properties": [1]}, {"a": 1}),
    "required that is text": ({"required": "abc"}, {"a": 1}),
    "required of 30,000": ({"required": [f"k{n}" for n in range(30_000)]}, _BIG),
    "type that is a list of lists": ({"properties": {"a": {"type": [["object"]]}}}, {"a": 1}),
    "an unknown type": ({"properties": {"a": {"type": "tuple"}}}, {"a": 1}),
    "dependentRequired that is text": ({"dependentRequired": {"a": "b"}}, {"a": 1}),
    "draft 7's items": ({"properties": {"a": {"items": [{}, {}], "additionalItems": False}}}, {"a": [1, 2, 3]}),
    "dependencies": ({"dependencies": {"a": ["b"], "c": {"$ref": "#"}}, "items": []}, {"a": 1, "c": 1}),
    "names of unicode": ({"properties": {"\u202e\u0000\U0001f600": {"type": "string"}}}, {"\u202e\u0000\U0001f600": "x"}),
    "a lone surrogate in a name": ('{"properties":{"\\ud800":{"type":"string"}}}', '{"\\ud800":"x"}'),
    "a lone surrogate in a pattern": ('{"properties":{"a":{"pattern":"[\\ud800-\\udfff]"}}}', {"a": "x"}),
    "a name twice": ('{"type":"string","type":"object","properties":{"a":{}},"properties":{}}', {"a": 1}),
    "descriptions of 4 MB": ({"description": "x" * 4_000_000}, {"a": 1}),
}  # fmt: skip

_LONG_NUMBERS = "[" + ",".join(["1.2345678901234567e-7"] * 180_000) + "]"
VALUES: dict[str, tuple[Any, str]] = {
    "4 MB of long numbers": ({"properties": {"a": {"type": "array"}}}, '{"a":' + _LONG_NUMBERS + "}"),
    "280,000 numbers": ({}, '{"a":[' + ",".join(["123456789.125"] * 280_000) + "]}"),
    "numbers of 4,000 digits": ({}, '{"a":[' + ",".join(["7" * 4_000] * 1_000) + "]}"),
    "numbers of 300 digits": ({}, '{"a":[' + ",".join(["7" * 300] * 13_000) + "]}"),
    "fractions of 10,000 digits": ({}, '{"a":[' + ",".join(["0." + "7" * 10_000] * 400) + "]}"),
    "exponents": ({}, '{"a":[' + ",".join(["1e" + "0" * 4_000 + "1"] * 900) + "]}"),
    "1e999": ({"properties": {"a": {"maximum": 5}}}, '{"a":1e999}'),
    "-1e999": ({"properties": {"a": {"multipleOf": 5}}}, '{"a":-1e999}'),
    "an integer of 5,000 digits": ({}, '{"a":' + "7" * 5_000 + "}"),
    "NaN": ({}, '{"a":NaN}'),
    "900 brackets": ({}, '{"a":' + "[" * 900 + "]" * 900 + "}"),
    "100,000 brackets": ({}, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "50,000 empty objects": ({}, '{"a":[' + ",".join(["{}"] * 50_000) + "]}"),
    "290,000 texts": ({}, '{"a":[' + ",".join(['"ab"'] * 290_000) + "]}"),
    "140,000 members": ({}, "{" + ",".join(f'"k{n}":"v"' for n in range(140_000)) + "}"),
    "the same name 140,000 times": ({}, "{" + ",".join(['"k":"v"'] * 140_000) + "}"),
    "4 MB of escapes": ({}, '{"a":"' + "\\u0041" * 660_000 + '"}'),
    "4 MB of surrogate pairs": ({}, '{"a":"' + "\\ud83d\\ude00" * 330_000 + '"}'),
    "half a pair at the end": ({}, '{"a":"\\ud83d"}'),
    "a NUL": ({}, '{"a":"\\u0000"}'),
    "a control character": ({}, '{"a":"\u0001"}'),
    "BOM": ({}, '\ufeff{"a":1}'),
    "4 MB of spaces": ({}, '{"a":1' + " " * 4_000_000 + "}"),
    "4 MB of backslashes": ({}, '{"a":"' + "\\\\" * 2_000_000 + '"}'),
    "4 MB of quotes": ({}, '{"a":"' + '\\"' * 2_000_000 + '"}'),
    "4 MB of wide text": ({}, '{"a":"' + "\u4e2d" * 1_300_000 + '"}'),
    "markup everywhere": ({}, '{"a":"' + "<tool_call>" * 300_000 + '"}'),
    "half markup everywhere": ({}, '{"a":"' + "<|tool_calls_sec" * 200_000 + '"}'),
    "replacement characters": ({}, '{"a":"' + "\ufffd" * 1_000 + '"}'),
    "a document and rubbish": ({}, '{"a":1} x'),
    "two documents": ({}, '{"a":1}{"a":1}'),
    "single quotes": ({}, "{'a':1}"),
    "nothing": ({}, ""),
}
