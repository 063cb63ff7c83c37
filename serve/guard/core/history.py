"""Repair of a conversation's history: one malformed call of an earlier turn must not spoil every later turn.

vLLM parses the arguments of every earlier call and answers 400 when one is not JSON; a client that keeps its history
would get that 400 for ever. Kimi's chat template also takes a call's name from its id, which must therefore have the
form `functions.NAME:INDEX`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serve.guard.core.json_prefix import JsonPrefix
from serve.parsing.strict_json import loads

Mode = Literal["off", "warn", "fix"]
_KIMI_ID = re.compile(r"functions\.(?P<name>.+):\d+")
UNPARSED_KEY = "_unparsed_arguments"  # holds arguments that can't be completed: the model still sees what it wrote


@dataclass(frozen=True)
class Repair:
    """The result of a look at a history.

    Attributes:
        messages: The messages to send on: the very same object if nothing was changed.
        arguments: Calls whose arguments were malformed.
        ids: Calls whose ids did not have the form that the template needs.
    """

    messages: Sequence[Any]
    arguments: int = 0
    ids: int = 0

    @property
    def clean(self) -> bool:
        """True if nothing was wrong."""
        return not (self.arguments or self.ids)


def repair_history(messages: Sequence[Any], mode: Mode, *, kimi_ids: bool = False) -> Repair:
    """Finds calls that an engine would choke on, and repairs them in mode `fix`.

    Valid JSON is never touched, not even its spacing; nor are messages of a shape that is not OpenAI's.

    Args:
        messages: Of the request.
        mode: `off` looks at nothing, `warn` counts, `fix` repairs.
        kimi_ids: Whether ids are rewritten to `functions.NAME:INDEX`, in calls and in the results that refer to them.
    """
    if mode == "off" or not any(isinstance(message, Mapping) and message.get("tool_calls") for message in messages):
        return Repair(messages)
    history = _History(kimi_ids)
    repaired = [history.message(message) if isinstance(message, Mapping) else message for message in messages]
    changed = mode == "fix" and (history.arguments or history.ids)
    return Repair(repaired if changed else messages, history.arguments, history.ids)


def completed(text: str) -> str:
    """Returns malformed arguments as a JSON object.

    Text that begins an object is completed where it was cut, so that the model sees its call almost as it meant it.
    Any other text is kept whole under one key.
    """
    if not text.strip():
        return "{}"
    prefix = JsonPrefix(must_be_object=True)
    if prefix.feed(text) == len(text) and (ending := _ending(text, prefix.closing)) is not None:
        return text + ending
    return json.dumps({UNPARSED_KEY: text}, ensure_ascii=False)


_ENDINGS: tuple[str, ...] = ("", '"', "null", ": null", '": null', '"": null')


def _ending(text: str, closing: str) -> str | None:
    """Returns the text that completes the beginning of an object; None if nothing short does."""
    for ending in _ENDINGS:
        try:
            loads(text + ending + closing)
        except ValueError:
            continue
        return ending + closing
    return None


class _History:
    """One pass over the messages; a rewritten id applies to all that follow."""

    def __init__(self, kimi_ids: bool) -> None:
        self.arguments = 0
        self.ids = 0
        self._kimi_ids = kimi_ids
        self._counter = 0
        self._renamed: dict[str, str] = {}

    def message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(calls := message.get("tool_calls"), list):
            return _with(
                message, "tool_calls", [self._call(call) if isinstance(call, Mapping) else call for call in calls]
            )
        old = message.get("tool_call_id")
        if message.get("role") == "tool" and isinstance(old, str) and old in self._renamed:
            return _with(message, "tool_call_id", self._renamed[old])
        return message

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping):
            return call
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not _is_object(arguments):
            self.arguments += 1
            call = {**call, "function": {**function, "arguments": completed(arguments)}}
        return self._with_id(call, str(function.get("name", ""))) if self._kimi_ids else call

    def _with_id(self, call: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """Rewrites an id that has another name or no number; Kimi counts calls over the whole conversation."""
        index = self._counter
        self._counter += 1
        old = call.get("id")
        match = _KIMI_ID.fullmatch(old) if isinstance(old, str) else None
        if match is not None and match["name"] == name:
            self._renamed.pop(str(old), None)
            return call
        self.ids += 1
        new = f"functions.{name}:{index}"
        if isinstance(old, str):
            self._renamed[old] = new
        return {**call, "id": new}


def _with(message: Mapping[str, Any], key: str, value: Any) -> Mapping[str, Any]:
    return message if message[key] == value else {**message, key: value}


def _is_object(text: str) -> bool:
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False
