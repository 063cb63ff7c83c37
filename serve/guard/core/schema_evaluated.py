"""Which properties and items of a value a schema's keywords have evaluated (JSON Schema 2020-12, core, section 11).

The library has such functions too, but no name may be looked at without a word to the budget, which is in `descend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def evaluated_names(validator: Any, instance: Mapping[str, Any], schema: Any) -> Iterator[str]:
    """Yields the names of properties that are evaluated, some of them several times.

    Args:
        validator: Of `schema`.
        instance: The value.
        schema: It holds for `instance`.
    """
    if isinstance(schema, bool):
        return
    yield from schema.get("properties", {}).keys() & instance.keys()
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if (rest := schema.get(keyword)) is not None:
            yield from (name for name, value in instance.items() if _holds(validator, value, rest))
    for name, part in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield from evaluated_names(validator, instance, part)
    for applied, part in _in_place(validator, instance, schema):
        yield from evaluated_names(applied, instance, part)


def evaluated_indexes(validator: Any, instance: list[Any], schema: Any) -> Iterator[int]:
    """Yields the indexes of items that are evaluated, some of them several times.

    Args:
        validator: Of `schema`.
        instance: The value.
        schema: It holds for `instance`.
    """
    if isinstance(schema, bool):
        return
    if "items" in schema:
        yield from range(len(instance))
        return
    yield from range(len(schema.get("prefixItems", ())))
    for keyword in ("contains", "unevaluatedItems"):
        if (part := schema.get(keyword)) is not None:
            yield from (index for index, value in enumerate(instance) if _holds(validator, value, part))
    for applied, part in _in_place(validator, instance, schema):
        yield from evaluated_indexes(applied, instance, part)


def _in_place(validator: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields the schemas within one that hold for the same value, each with its validator."""
    for keyword in ("$ref", "$dynamicRef"):
        if (reference := schema.get(keyword)) is not None:
            found = validator._resolver.lookup(reference)
            yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            if _holds(validator, instance, part):
                yield validator, part
    if "if" in schema:
        branches = ("if", "then") if _holds(validator, instance, schema["if"]) else ("else",)
        yield from ((validator, schema[branch]) for branch in branches if branch in schema)


def _holds(validator: Any, instance: Any, schema: Any) -> bool:
    return next(validator.descend(instance, schema), None) is None
