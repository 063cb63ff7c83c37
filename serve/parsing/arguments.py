"""Checks of a call's arguments once they are complete."""

from __future__ import annotations

from typing import Any

from serve.parsing.events import ViolationKind
from serve.parsing.strict_json import loads, repeats_a_key
from serve.parsing.tools import Tools


def read_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object in `text`, or None if it holds anything else."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def audit(text: str, name: str, tools: Tools, *, by_tags: bool = False) -> list[ViolationKind]:
    """Returns the violations of a complete call that its name, its keys and JSON alone reveal.

    Args:
        text: The arguments.
        name: Of the tool.
        tools: Those that the request declares.
        by_tags: The grammar has a tag for each key, and reports itself one that comes twice.
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
