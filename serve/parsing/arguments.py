"""What can be said about a call's arguments once they are complete."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from serve.parsing.events import ViolationKind
from serve.parsing.tools import Tools


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, or None."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def audit(text: str, name: str, tools: Tools) -> list[ViolationKind]:
    """What is wrong with a finished call, as far as names, keys and JSON tell."""
    found: list[ViolationKind] = []
    if tools and name not in tools:
        found.append("unknown_tool")
    arguments = read_object(text)
    if arguments is None:
        return [*found, "malformed_arguments"]
    properties = tools.properties(name)
    if properties is not None and not arguments.keys() <= properties.keys():
        found.append("unknown_argument")
    if not tools.required(name) <= arguments.keys():
        found.append("missing_argument")
    return found
