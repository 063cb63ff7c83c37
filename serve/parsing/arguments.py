"""What the complete arguments of a call say: whether there are any, what is wrong with them, and which tool is meant by
a call without a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from serve.parsing.events import ViolationKind
from serve.parsing.strict_json import loads, repeats_a_key
from serve.parsing.tools import Tools
from serve.parsing.values import is_of, stated_types

# Spellings of "no arguments" that models and serializers use where `{}` is due, in lower case and without quotes.
_NOTHING = ("", "null", "none", "undefined", "nil", "[]", "{}")
_LONGEST = 16  # characters of a spelling with its quotes


def means_nothing(text: str) -> bool:
    """Returns whether arguments are some other spelling of `{}`: `null`, `""`, `[]`, blanks and the like."""
    return _bare(text) in _NOTHING


def may_mean_nothing(text: str) -> bool:
    """Returns whether arguments begin some other spelling of `{}`."""
    begun = _bare(text)
    return begun is not None and any(spelling.startswith(begun) for spelling in _NOTHING)


def _bare(text: str) -> str | None:
    """Returns the spelling that a text may be, without blanks and quotes; None if it is too long for one."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if text[:1] in ('"', "'"):
        quote = text[0]
        text = text[1:].removesuffix(quote)
    return "".join(text.split()).lower()


def read_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object in `text`, or None if it holds anything else."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def plain_text(value: Mapping[str, Any]) -> str:
    """Returns an object as JSON; empty if JSON has no word for a value in it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return ""


def audit(text: str, name: str, tools: Tools, *, by_tags: bool = False) -> list[ViolationKind]:
    """Returns the violations of a complete call that its name, its keys and JSON alone reveal. A grammar that has a tag
    for each key reports itself one that comes twice.
    """
    kinds: list[ViolationKind] = []
    if tools and name not in tools:
        kinds.append("unknown_tool")
    arguments = read_object(text)
    if arguments is None:
        return [*kinds, "malformed_arguments"]
    properties = tools.properties(name)
    if properties is not None and not arguments.keys() <= properties.keys():
        kinds.append("unknown_argument")
    if not by_tags and repeats_a_key(text, arguments):
        kinds.append("duplicate_argument")
    if not tools.required(name) <= arguments.keys():
        kinds.append("missing_argument")
    return kinds


class Inferred(NamedTuple):
    """A tool, and the arguments of a call to it. They are None if they are as given."""

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
