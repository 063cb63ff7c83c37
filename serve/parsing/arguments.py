"""Checks of a call's arguments once they are complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from serve.parsing.events import ViolationKind
from serve.parsing.strict_json import loads, repeats_a_key
from serve.parsing.tools import Tools

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
    if not by_tags and repeats_a_key(text, len(arguments)):
        kinds.append("duplicate_argument")
    if not tools.required(name) <= arguments.keys():
        kinds.append("missing_argument")
    return kinds
