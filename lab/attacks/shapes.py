"""Whole answers of shapes that a reader may not expect, and such as are long to read.

What is expected of a shape: it passes as it is, or is mended, or is 502 or more with an error. Of a dense one: 502.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.scripted.scripts import whole

_LOOK_UP = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def _message(message: Any) -> dict[str, Any]:
    return {**whole({}), "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


SHAPES: dict[str, Any] = {
    "no index": {**whole({}), "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]},
    "content in parts": _message({"role": "assistant", "content": [{"type": "text", "text": "hello"}]}),
    "a message that is text": _message("hello"),
    "a message that is null": _message(None),
    "calls that are text": _message({"role": "assistant", "tool_calls": "look_up"}),
    "a call that is text": _message({"role": "assistant", "tool_calls": ["look_up"]}),
    "calls that are an object": _message({"role": "assistant", "tool_calls": _LOOK_UP}),
    "a call without a function": _message({"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]}),
    "choices that are an object": {**whole({}), "choices": {"0": {}}},
    "choices that hold text": {**whole({}), "choices": ["hello"]},
    "null": None,
    "a list": [whole({"content": "hello"})],
    "a number": 7,
}
# Built when they are asked for: megabytes each.
DENSE: dict[str, Callable[[], str]] = {
    "escapes": lambda: '{"choices": [], "x": "' + "\\n" * 1_100_000 + '"}',
    "long numbers": lambda: '{"choices": [], "x": [' + ",".join(["7" * 4_000] * 300) + "]}",
    "members": lambda: '{"choices": [], "x": {' + ",".join(f'"{n}":0' for n in range(510_000)) + "}}",
}
