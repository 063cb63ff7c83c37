"""OpenAI deltas, as chat completion streams carry them, folded into the message that they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_TEXTS = ("reasoning", "reasoning_content", "content")  # vLLM and other engines name reasoning differently


def fold_deltas(deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the message of one choice; text fields and `tool_calls` only where the deltas have any."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name in _TEXTS:
            if text := delta.get(name):
                message[name] = message.get(name, "") + text
        for entry in delta.get("tool_calls") or ():
            _add_entry(calls, entry)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def _add_entry(calls: dict[int, dict[str, Any]], entry: Mapping[str, Any]) -> None:
    call = calls.setdefault(entry["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = entry.get("id") or call["id"]
    function = entry.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
