"""A chat request as the guard reads it."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from serve.request.completion import CompletionRequest, Format, Tool


class Expected(Mapping[str, Any]):
    """A chat request as the guard reads it: what an answer must be at hand, the conversation only if it is asked for.

    Args:
        asked: What was read of it.
        body: All of it.
    """

    def __init__(self, asked: CompletionRequest, body: bytes) -> None:
        self._body = body
        self._at_hand: dict[str, Any] = {
            "tools": [_tool(tool) for tool in asked.tools or ()],
            "tool_choice": msgspec.to_builtins(asked.tool_choice),
            "response_format": _format(asked.response_format),
            "stream_options": msgspec.json.decode(asked.stream_options),
        }

    def __getitem__(self, name: str) -> Any:
        return self._at_hand[name] if name in self._at_hand else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Any]:
        made: dict[str, Any] = msgspec.json.decode(self._body)
        return made


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    if function is None:
        return {"type": tool.type}
    parameters = msgspec.json.decode(function.parameters)
    said = {"name": function.name, "strict": function.strict, "parameters": parameters}
    return {"type": tool.type, "function": said}


def _format(wanted: Format | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    described = wanted.json_schema
    if described is None:
        return {"type": wanted.type}
    schema = {"strict": described.strict, "schema": msgspec.json.decode(described.schema)}
    return {"type": wanted.type, "json_schema": schema}
