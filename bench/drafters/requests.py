"""Requests that have a right and a wrong form, from the tiny models' held-out dialogues, by request class."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from models.dialogues import Dialogue, held_out

_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array"}
Fields = Callable[[Dialogue], Mapping[str, Any]]


def _tools(dialogue: Dialogue) -> dict[str, Any]:
    return {"tools": [tool.schema() for tool in dialogue.tools]}


def _schema(dialogue: Dialogue) -> dict[str, Any]:
    """Returns the response format that allows the members of the right answer, and no others."""
    answer = json.loads(dialogue.content)
    properties = {name: {"type": _TYPES[type(value)]} for name, value in answer.items()}
    schema = {"type": "object", "properties": properties, "required": list(answer), "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}}


# Request class -> whether its answers are calls, and the fields that make a dialogue a request of that class.
CLASSES: dict[str, tuple[bool, Fields]] = {
    "tools_auto": (True, _tools),
    "tools_forced": (True, lambda dialogue: {**_tools(dialogue), "tool_choice": "required"}),
    "json_object": (False, lambda _: {"response_format": {"type": "json_object"}}),
    "json_schema": (False, _schema),
}


def requests_of(name: str, count: int) -> dict[int, dict[str, Any]]:
    """Returns requests of one class, numbered as the lines of a request set are.

    Args:
        name: A request class.
        count: How many.
    """
    with_calls, fields = CLASSES[name]
    # About one held-out dialogue in eight is answered in JSON, and one in two with calls.
    fitting = (each for each in held_out(16 * count) if (each.calls if with_calls else each.kind == "json"))
    chosen = [dialogue for dialogue, _ in zip(fitting, range(count), strict=False)]
    assert len(chosen) == count, "too few dialogues of this kind"
    return {number: _body(dialogue, fields(dialogue)) for number, dialogue in enumerate(chosen, 1)}


def _body(dialogue: Dialogue, fields: Mapping[str, Any]) -> dict[str, Any]:
    thinking = {"thinking": dialogue.thinking, "enable_thinking": dialogue.thinking}
    messages = [_message(message) for message in dialogue.messages]
    return {"messages": messages, **fields, "chat_template_kwargs": thinking}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with the arguments of its calls as a string, as OpenAI's API has them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)
