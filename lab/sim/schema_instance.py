"""Generates random instances of JSON schemas: the arguments and documents that a simulated model writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

import jsonschema

WORDS = (
    "检查 CDP 依赖环境.",
    'say "hi"\n',
    "naïve 🙂🚀",
    "C:\\temp\\新文件",
    "plain words",
    "Tōkyō",
    "a<b && c>d",
    "第3章",
)
FORMATS = {
    "date": "2026-11-21",
    "date-time": "2026-11-21T03:04:05Z",
    "time": "03:04:05Z",
    "email": "someone@example.com",
    "uri": "https://example.com/a?b=c",
    "uuid": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "ipv4": "192.0.2.7",
    "hostname": "host.example.com",
}
DEEPEST = 12
"""Nesting beyond which the first branch of a choice is taken; four times this is considered endless."""
MOST_VALUES = 5000
LONGEST = 10_000


class NoInstanceError(Exception):
    """The generator cannot handle the schema: a pattern, a contradiction, or endless recursion."""


def instance_of(schema: Mapping[str, Any] | bool, rng: Random) -> Any:
    """Returns a value that `schema` accepts.

    Raises:
        NoInstanceError: The generator found none; one may exist all the same.
    """
    if problem := _problem(json.dumps(schema)):
        raise NoInstanceError(problem)
    value = _Filler(schema if isinstance(schema, Mapping) else {}, rng).value(schema, 0)
    try:
        valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    except re.error as error:
        raise NoInstanceError(f"a pattern is not a regular expression: {error}") from error
    if not valid:
        raise NoInstanceError(f"no value found for the schema {str(schema)[:200]}")
    return value


@lru_cache(maxsize=256)  # to check a schema takes ten times as long as to fill it
def _problem(schema: str) -> str:
    """Returns why a schema, as JSON, is none; empty if it is one."""
    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    except jsonschema.SchemaError as error:
        return f"not a JSON schema: {error.message[:200]}"
    return ""


class _Filler:
    def __init__(self, root: Mapping[str, Any], rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._made = 0
        self._makers: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda schema, depth: self._rng.random() < 0.5,
            "null": lambda schema, depth: None,
        }

    def value(self, schema: Mapping[str, Any] | bool, depth: int) -> Any:
        self._made += 1
        if depth > 4 * DEEPEST or self._made > MOST_VALUES:
            raise NoInstanceError("the schema requires too many values")
        if isinstance(schema, bool):
            return "anything"
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        if "$ref" in schema:
            return self.value(self._resolve(schema["$ref"]), depth + 1)
        if merged := self._combined(schema, depth):
            return self.value(merged, depth + 1)
        return self._makers[self._kind(schema)](schema, depth)

    def _combined(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any] | None:
        """Returns the schema merged with one branch of its `anyOf`/`oneOf` and all of its `allOf`, or None."""
        if not any(schema.get(word) for word in ("anyOf", "oneOf", "allOf")):
            return None
        merged = {key: part for key, part in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
        branches = list(schema.get("allOf", ()))
        for word in ("anyOf", "oneOf"):
            if choices := schema.get(word):
                branches.append(choices[0] if depth > DEEPEST else self._rng.choice(choices))
        for branch in branches:
            for key, part in (self._resolve(branch["$ref"]) if "$ref" in branch else branch).items():
                both = isinstance(part, Mapping) and isinstance(merged.get(key), Mapping)
                merged[key] = {**merged[key], **part} if both else part
        return merged

    def _resolve(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise NoInstanceError(f"a reference outside the schema: {reference}")
        node: Any = self._root
        for step in filter(None, reference[1:].split("/")):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            raise NoInstanceError(f"the reference {reference} leads nowhere")
        return node

    @staticmethod
    def _kind(schema: Mapping[str, Any]) -> str:
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return str(kinds[0])
        if kinds is not None:
            return str(kinds)
        hints = {"properties": "object", "required": "object", "items": "array", "prefixItems": "array"}
        hints |= {"minimum": "number", "maximum": "number", "multipleOf": "number"}
        return next((kind for word, kind in hints.items() if word in schema), "string")

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = list(schema.get("required", ()))
        optional = [name for name in properties if name not in required and depth <= 2 and self._rng.random() < 0.5]
        names = [name for name in properties if name in required or name in optional]
        extra = schema.get("additionalProperties", True)
        instance = {name: self.value(properties[name], depth + 1) for name in names}
        instance |= {name: self.value(extra, depth + 1) for name in required if name not in properties}
        while len(instance) < schema.get("minProperties", 0):
            instance[f"key{len(instance)}"] = self.value(extra, depth + 1)
        return instance

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        instance = [self.value(prefix_item, depth + 1) for prefix_item in schema.get("prefixItems", ())]
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", max(least, 2))
        count = least if depth > 2 else max(least, min(most, self._rng.randint(1, 3)))
        items = schema.get("items", {"type": "string"})
        while len(instance) < count:
            item = self.value(items, depth + 1)
            if schema.get("uniqueItems") and item in instance:
                item = self._distinct(items, instance, depth)
            instance.append(item)
        return instance

    def _distinct(self, items: Any, taken: list[Any], depth: int) -> Any:
        for _ in range(50):
            if (item := self.value(items, depth + 1)) not in taken:
                return item
        raise NoInstanceError("too few distinct values for uniqueItems")

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        if schema.get("minLength", 0) > LONGEST:
            raise NoInstanceError("the schema requires too long a string")
        text = self._rng.choice(WORDS)
        while len(text) < schema.get("minLength", 0):
            text += self._rng.choice(WORDS)
        return text[: schema.get("maxLength", len(text))]

    def _integer(self, schema: Mapping[str, Any], depth: int) -> int:
        return int(self._between(schema, step=int(schema.get("multipleOf", 1)) or 1))

    def _number(self, schema: Mapping[str, Any], depth: int) -> Any:
        return self._between(schema, step=schema.get("multipleOf", 0.5))

    def _between(self, schema: Mapping[str, Any], step: float) -> Any:
        """Returns a multiple of `step` within the bounds, near the lower one."""
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None or high > 0 else high - 100 * step
        first = -(-low // step)
        if first * step == schema.get("exclusiveMinimum"):
            first += 1
        most = 100 if high is None else max(0, (high - first * step) // step)
        if high is not None and (first + most) * step == schema.get("exclusiveMaximum"):
            most -= 1
        return (first + self._rng.randint(0, max(0, int(min(most, 100))))) * step
