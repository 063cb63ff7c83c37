"""Most chunks hold one piece of a text or of a call's arguments: they are told at a glance and cost little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXTS = ("content", "reasoning", "reasoning_content")
_SILENT: tuple[Any, ...] = (None, "", [])


def lone_piece(chunk: Mapping[str, Any]) -> tuple[int, str, Any] | None:
    """(choice, field, value) of a chunk that says one text, or one entry of a call, and nothing else.

    Args:
        chunk: Of any shape: a foreign engine may send anything.
    """
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or chunk.get("usage") or chunk.get("error"):
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") is not None:
        return None
    index, delta = choice.get("index", 0), choice.get("delta")
    said = [item for item in delta.items() if item[1] not in _SILENT] if type(delta) is dict else []
    if len(said) != 1 or type(index) is not int:
        return None
    name, value = said[0]
    if name == "tool_calls":
        return (index, name, value[0]) if type(value) is list and len(value) == 1 else None
    return (index, name, value) if name in TEXTS and type(value) is str else None


def more_arguments(entry: Any) -> tuple[int, str] | None:
    """(call, text) of a call's entry that only carries on with its arguments."""
    if type(entry) is not dict or entry.get("id"):
        return None
    index, function = entry.get("index"), entry.get("function")
    if type(index) is not int or type(function) is not dict or function.get("name"):
        return None
    text = function.get("arguments")
    return (index, text) if type(text) is str else None
