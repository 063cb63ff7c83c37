"""Keywords of JSON Schema in place of the library's: each counts its work, and no error quotes the value.

The library writes the value into the message of each error, all of it, and looks at some values item by item without a
word in between: for a large answer both take longer than a request may, and nothing could end them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import regex
from jsonschema.exceptions import ValidationError

from serve.guard.core.schema_budget import TooMuchWorkError, UnjudgedError, current
from serve.guard.core.schema_evaluated import evaluated_indexes, evaluated_names

_MATCH_TIMEOUT_S = 0.01
_LONGEST_PATTERN = 512  # characters; the compiler of patterns can't be interrupted

Keyword = Callable[[Any, Any, Any, Any], Any]


def _holds(validator: Any, instance: Any, schema: Any) -> bool:
    return next(validator.descend(instance, schema), None) is None


def _matches(pattern: str, text: str) -> bool:
    current.get().step()
    if len(pattern) > _LONGEST_PATTERN:
        raise UnjudgedError("a long pattern")
    try:
        return regex.search(pattern, text, timeout=_MATCH_TIMEOUT_S) is not None
    except TimeoutError as error:
        raise TooMuchWorkError("a slow pattern") from error


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("the pattern is not found")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    for pattern, schema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _unique_items(_: Any, unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list) and len(set(map(_identity, instance))) < len(instance):
        yield ValidationError("not unique")


def _enum(_: Any, allowed: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    own = _identity(instance)
    if not any(_identity(each) == own for each in allowed):
        yield ValidationError("not in the enumeration")


def _const(_: Any, allowed: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if _identity(allowed) != _identity(instance):
        yield ValidationError("not the constant")


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    known = schema.get("properties", {})
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name not in known:
            if allowed is False:
                yield ValidationError("more properties than there may be")
                return
            yield from validator.descend(value, allowed, path=name)


def _unevaluated_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        evaluated = frozenset(evaluated_names(validator, instance, schema))
        if any(name not in evaluated and not _holds(validator, value, allowed) for name, value in instance.items()):
            yield ValidationError("an unevaluated property")


def _unevaluated_items(validator: Any, _: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, list):
        evaluated = frozenset(evaluated_indexes(validator, instance, schema))
        if any(index not in evaluated for index in range(len(instance))):
            yield ValidationError("an unevaluated item")


def _type(validator: Any, types: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not any(validator.is_type(instance, each) for each in ([types] if isinstance(types, str) else types)):
        yield ValidationError("of another type")


def _any_of(validator: Any, schemas: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not any(_holds(validator, instance, each) for each in schemas):
        yield ValidationError("none of the schemas holds")


def _one_of(validator: Any, schemas: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    holding = (each for each in schemas if _holds(validator, instance, each))
    if next(holding, None) is None or next(holding, None) is not None:
        yield ValidationError("none of the schemas holds, or more than one")


def _not(validator: Any, denied: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.evolve(schema=denied).is_valid(instance):
        yield ValidationError("the schema holds")


def _items(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    listed = len(schema.get("prefixItems", ()))
    yield from _rest_of(validator, listed, allowed, instance)


def _additional_items(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    listed = schema.get("items")
    if isinstance(listed, list):
        yield from _rest_of(validator, len(listed), allowed, instance)


def _rest_of(validator: Any, begin: int, allowed: Any, instance: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, list) or len(instance) <= begin:
        return
    if allowed is False:
        yield ValidationError("more items than there may be")
        return
    for index in range(begin, len(instance)):
        yield from validator.descend(instance[index], allowed, path=index)


def _contains(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, list):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains", len(instance))
    check = validator.evolve(schema=wanted)
    found = 0
    for each in instance:
        found += check.is_valid(each)
        if found > most:
            yield ValidationError("too many", validator="maxContains", validator_value=most)
            return
    if found < least:
        yield ValidationError("too few", **({"validator": "minContains", "validator_value": least} if found else {}))


def _contains_one(validator: Any, wanted: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    check = validator.evolve(schema=wanted)
    if isinstance(instance, list) and not any(map(check.is_valid, instance)):
        yield ValidationError("none that is wanted")


def _dependencies(validator: Any, dependencies: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    """Both of a name's forms: other names, and, in draft 7, a schema."""
    for name, needed in dependencies.items() if isinstance(instance, dict) else ():
        current.get().step()
        if name not in instance:
            continue
        if not isinstance(needed, list):
            yield from validator.descend(instance, needed, schema_path=name)
        elif any(each not in instance for each in needed):
            yield ValidationError("a name that another one needs is missing")


def _sized(kind: type, fails: Callable[[Any, Any], bool]) -> Keyword:
    """Returns a keyword that compares the size of values of a type with its own value."""

    def keyword(_: Any, limit: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
        if isinstance(instance, kind) and fails(len(instance), limit):  # type: ignore[arg-type]
            yield ValidationError("too long or too short")

    return keyword


def _identity(value: Any) -> Any:
    """Returns what is equal for equal JSON: 1 and 1.0 are, 1 and true are not."""
    current.get().step()
    if isinstance(value, dict):
        return frozenset((key, _identity(member)) for key, member in value.items())
    if isinstance(value, list):
        return tuple(map(_identity, value))
    return type(value) is bool, value


def _nothing(*_: Any) -> tuple[()]:
    return ()


EVERYWHERE: dict[str, Keyword] = {
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "const": _const,
    "enum": _enum,
    "maxItems": _sized(list, operator.gt),
    "maxLength": _sized(str, operator.gt),
    "maxProperties": _sized(dict, operator.gt),
    "minItems": _sized(list, operator.lt),
    "minLength": _sized(str, operator.lt),
    "minProperties": _sized(dict, operator.lt),
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,  # Python's own `re` can't be interrupted
    "patternProperties": _pattern_properties,
    "type": _type,
    "uniqueItems": _unique_items,
}
DRAFT_7: dict[str, Keyword] = {
    "additionalItems": _additional_items,
    "contains": _contains_one,
    "dependencies": _dependencies,
}
LATER_DRAFTS: dict[str, Keyword] = {
    "contains": _contains,
    "dependentRequired": _dependencies,
    "items": _items,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
}
# Beside patterns these are not judged: every name would have to be matched with every pattern once more.
BESIDE_PATTERNS: dict[str, Keyword] = {"additionalProperties": _nothing, "unevaluatedProperties": _nothing}
