"""The shape of a JSON schema, checked in one pass: the metaschema itself takes twenty times as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Finding these crawls the whole schema, for every reference again.
_CRAWLED = ("$anchor", "$dynamicAnchor", "$dynamicRef")
_MOST_CRAWLED = 500  # schemas
# Every id is joined with that of the schema around it, again for every reference.
_MOST_JOINED = 16_384  # characters
_LONGEST_REFERENCE = 2_048  # characters

_ONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
     "unevaluatedProperties"}
)  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_REFERENCE


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _is_types(value)


def _is_types(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= len(_TYPES) and _is_names(value) and _TYPES.issuperset(value)


_VALUES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("$ref", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef"), _is_reference),
    "pattern": _is_text,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains",
         "maxContains"),
        _is_count,
    ),
    "multipleOf": _is_positive,
    "required": _is_names,
    "dependentRequired": lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
    "enum": lambda value: isinstance(value, list),
    "uniqueItems": lambda value: isinstance(value, bool),
    "type": _is_type,
}  # fmt: skip


def check_shape(schema: Any, step: Callable[[], None]) -> bool:
    """Returns whether every keyword that is known has a value of its kind.

    Args:
        schema: Of any shape.
        step: Called for every schema within; it may raise.
    """
    waiting = [schema]
    seen = 0
    crawled = False
    while waiting:
        step()
        part = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping) or not _has_shape(part):
            return False
        seen += 1
        crawled = crawled or any(keyword in part for keyword in _CRAWLED) or (seen > 1 and "$id" in part)
        if crawled and seen + len(waiting) > _MOST_CRAWLED:
            return False
        waiting.extend(_parts(part))
    return not crawled or _joined(schema) <= _MOST_JOINED


def _joined(schema: Any) -> int:
    """Returns how many characters all ids have once each is joined with those around it."""
    waiting = [(schema, 0)]
    joined = 0
    while waiting:
        part, around = waiting.pop()
        if isinstance(part, Mapping):
            if "$id" in part:
                around += len(part["$id"])
                joined += around
            waiting.extend((each, around) for each in _parts(part))
    return joined


def _has_shape(schema: Mapping[str, Any]) -> bool:
    for keyword, value in schema.items():
        fits = _VALUES.get(keyword)
        if fits is not None and not fits(value):
            return False
        if keyword in _LIST and not isinstance(value, list):
            return False
        if keyword in _MAP and not isinstance(value, Mapping):
            return False
    return True


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield from value if isinstance(value, list) else (value,)
        elif keyword in _LIST:
            yield from value
        elif keyword in _MAP:
            yield from value.values()
