"""Infers the tool that a call without a name means from its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.parsing.coercion import stated_types
from serve.parsing.tools import Tools

_TYPES: tuple[tuple[type, frozenset[str]], ...] = (
    (bool, frozenset({"boolean"})),  # before int, which it is a kind of
    (int, frozenset({"integer", "number"})),
    (float, frozenset({"number"})),
    (str, frozenset({"string"})),
    (list, frozenset({"array"})),
    (dict, frozenset({"object"})),
    (type(None), frozenset({"null"})),
)


def infer(arguments: Mapping[str, Any], tools: Tools) -> str | None:
    """Returns the tool that takes these arguments, by names and types, if exactly one does."""
    fitting = [name for name in tools if _fits(arguments, name, tools)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(arguments: Mapping[str, Any], name: str, tools: Tools) -> bool:
    declared = tools.schema(name).get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    if not tools.required(name) <= arguments.keys() <= set(properties):
        return False
    return all(_is(value, stated_types(properties[key], tools.schema(name))) for key, value in arguments.items())


def _is(value: object, stated: frozenset[str]) -> bool:
    mine = next(types for kind, types in _TYPES if isinstance(value, kind))
    return not stated or not stated.isdisjoint(mine)
