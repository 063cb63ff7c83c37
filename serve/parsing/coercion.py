"""Which JSON type the text of an argument gets: turns it into the value that the tool's schema asks for."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from serve.parsing.tools import Schema

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "double": "number", "decimal": "number", "bool": "boolean", "binary": "boolean",
    "dict": "object", "map": "object", "list": "array", "arr": "array", "sequence": "array",
}  # fmt: skip
# Beginnings of the names that other languages give their numbers: int64, uint8, long, float32, numeric.
_NUMBERS = (("integer", ("int", "uint", "long", "short", "unsigned")), ("number", ("num", "float")))
_PYTHON_TYPES = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array",
}  # fmt: skip
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_DEPTH = 16  # of nested references and unions: a schema may refer to itself


class _NoFitError(Exception):
    """The text is no value of this type."""


def types_of(schema: Schema | None, root: Schema | None = None) -> frozenset[str]:
    """Returns all JSON types that the schema of a parameter allows; a string if it states none. `$ref` refers to the
    root; to the parameter's own schema if there is none.
    """
    return stated_types(schema, schema if root is None else root) or frozenset({"string"})


def stated_types(schema: Schema | None, root: Schema | None) -> frozenset[str]:
    """Returns the JSON types that a schema states, which may be none. `$ref` refers to the root."""
    types: set[str] = set()
    for each in alternatives(schema, root):
        own = _own_types(each)
        if each.get("nullable") is True:  # OpenAPI's spelling
            own |= {"null"} if own else {"string", "null"}
        types |= own
    return frozenset(types)


def alternatives(schema: Any, root: Schema | None) -> Iterator[Schema]:
    """Yields a schema, and those that its unions and references lead to.

    Each reference is followed once: unions of references to themselves grow.
    """
    return _alternatives(schema, root, _DEPTH, set())


def _alternatives(schema: Any, root: Schema | None, depth: int, followed: set[str]) -> Iterator[Schema]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    yield schema
    for union in ("anyOf", "oneOf", "allOf"):
        members = schema.get(union)
        for member in members if isinstance(members, list | tuple) else ():
            yield from _alternatives(member, root, depth - 1, followed)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        yield from _alternatives(_resolve(reference, root), root, depth - 1, followed)


def _own_types(schema: Schema) -> set[str]:
    """Returns the types that a schema states itself: by `type`, or else by its values."""
    kind = schema.get("type")
    names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    plain = [name.strip().lower() for name in names if isinstance(name, str)]
    if plain:
        return {_ALIASES.get(name) or _number_type(name) or name for name in plain}
    if isinstance(schema.get("enum"), list):
        return {_PYTHON_TYPES.get(type(value), "string") for value in schema["enum"]}
    return {_PYTHON_TYPES.get(type(schema["const"]), "string")} if "const" in schema else set()


def _number_type(name: str) -> str | None:
    return next((kind for kind, beginnings in _NUMBERS if name.startswith(beginnings)), None)


def _resolve(reference: str, root: Schema | None) -> Schema | None:
    """Returns what a reference into the document names; `#` is all of it."""
    path = unquote(reference.removeprefix("#").strip("/"))
    place: Any = root
    for step in path.split("/") if path else ():
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


def _integer(value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise _NoFitError
    return int(value)


def _number(value: str) -> int | float:
    try:
        number = float(value)
    except ValueError:
        raise _NoFitError from None
    if not math.isfinite(number):
        raise _NoFitError
    if _INTEGER.fullmatch(value):
        return int(value)
    return int(number) if number.is_integer() else number


def _boolean(value: str) -> bool:
    try:
        return _BOOLEANS[value.strip().lower()]
    except KeyError:
        raise _NoFitError from None


def _json(value: str) -> Any:
    try:
        parsed = json.loads(value)
        json.dumps(parsed, allow_nan=False)
    except (ValueError, RecursionError):
        raise _NoFitError from None
    return parsed


def _container(kind: type) -> Callable[[str], Any]:
    def read(value: str) -> Any:
        try:
            parsed = _json(value)
        except _NoFitError:
            parsed = _literal(value)
        if not isinstance(parsed, kind):
            raise _NoFitError
        return parsed

    return read


def _literal(value: str) -> Any:
    """Reads a Python literal, which templates that print a mapping with `str()` teach the model to write."""
    try:
        parsed = ast.literal_eval(value.strip())
        json.dumps(parsed, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise _NoFitError from None
    return parsed


# In this order: the narrower type first.
_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _integer, "number": _number, "boolean": _boolean, "object": _container(dict), "array": _container(list),
}  # fmt: skip


def coerce(value: str, schema: Schema, root: Schema | None = None) -> Any:
    """Returns the value that the schema of a parameter asks for, or the text itself if it does not fit; see `types_of`
    for the root.
    """
    types = types_of(schema, root)
    if "null" in types and (value.lower() == "null" or (value == "None" and _none_is_null(types))):
        return None
    for name, read in _READERS.items():
        if name in types:
            try:
                return read(value)
            except _NoFitError:
                continue
    if "string" in types:
        return value
    try:
        return _json(value)
    except _NoFitError:
        return value


def _none_is_null(types: frozenset[str]) -> bool:
    """Returns whether `None` is null, as Qwen's template prints it; where a string is allowed, it may be one."""
    return "string" not in types and len(types) > 1
