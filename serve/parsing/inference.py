"""Infers the tool that a call without a name means from its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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


class Inferred(NamedTuple):
    """A tool, and the arguments of a call to it.

    Attributes:
        name: Of the tool.
        arguments: None if they are as given.
    """

    name: str
    arguments: Mapping[str, Any] | None = None


def infer(arguments: Mapping[str, Any], tools: Tools, among: Iterable[str] = ()) -> Inferred | None:
    """Returns the tool that arguments fit, by names and types, or that they name themselves, if there is exactly one.

    They are those of a call without a name, or the call as an object with its name and arguments. Only the tools in
    `among` can be meant, if there are any.
    """
    candidates = list(among) or list(tools)
    readings = [Inferred(name) for name in candidates if _fits(arguments, name, tools)]
    readings += [
        named
        for named in _named(arguments, tools)
        if named.name in candidates and _fits(named.arguments or {}, named.name, tools)
    ]
    return readings[0] if len(readings) == 1 else None


def _named(call: Mapping[str, Any], tools: Tools) -> Iterator[Inferred]:
    """Yields what an object with a member `name` says if that names a tool: its arguments are a member, or the rest."""
    inner = call.get("function")
    if isinstance(inner, Mapping) and _is_only(call, "function"):
        call = inner
    name = call.get("name")
    meant = tools.names.meant_by(name, is_id=False) if isinstance(name, str) else []
    if len(meant) != 1:
        return
    rest = {key: value for key, value in call.items() if key != "name"}
    for key in ("arguments", "parameters"):
        value = rest.get(key)
        if isinstance(value, Mapping) and _is_only(rest, key):
            yield Inferred(meant[0], value)
            return
    yield Inferred(meant[0], rest)


def _is_only(call: Mapping[str, Any], key: str) -> bool:
    """Returns whether an object says nothing but one member, and that it is a function."""
    return call.keys() == {key} or (call.keys() == {key, "type"} and call["type"] == "function")


def _fits(arguments: Mapping[str, Any], name: str, tools: Tools) -> bool:
    declared = tools.schema(name).get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    if not tools.required(name) <= arguments.keys() <= set(properties):
        return False
    return all(is_of(value, stated_types(properties[key], tools.schema(name))) for key, value in arguments.items())


def is_of(value: object, stated: frozenset[str]) -> bool:
    """Returns whether a value of JSON has one of the types that a schema states, which may be none."""
    mine = next(types for kind, types in _TYPES if isinstance(value, kind))
    return not stated or not stated.isdisjoint(mine)
