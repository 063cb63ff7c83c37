"""Most chunks say nothing but one piece of text: those are told at a glance, so that they cost next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXTS = ("content", "reasoning", "reasoning_content")
_SILENT: tuple[Any, ...] = (None, "", [])


def lone_text(chunk: Mapping[str, Any]) -> tuple[int, str, str] | None:
    """(choice, field, text) of a chunk that says one text and nothing else; None of any other.

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
    if len(said) != 1 or said[0][0] not in TEXTS or type(said[0][1]) is not str or type(index) is not int:
        return None
    return index, *said[0]
