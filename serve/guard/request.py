"""A chat request in the form that the guard reads."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from serve.request.completion import CompletionRequest, Format, Tool


class LazyRequest(Mapping[str, Any]):
    """A chat request that parses the conversation only on demand; what a response must satisfy is at hand.

    Args:
        asked: The members that were parsed already.
        body: The whole body.
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
        members: dict[str, Any] = msgspec.json.decode(self._body)
        return members


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    if function is None:
        return {"type": tool.type}
    parameters = msgspec.json.decode(function.parameters)
    members = {"name": function.name, "strict": function.strict, "parameters": parameters}
    return {"type": tool.type, "function": members}


def _format(response_format: Format | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    json_schema = response_format.json_schema
    if json_schema is None:
        return {"type": response_format.type}
    members = {"strict": json_schema.strict, "schema": msgspec.json.decode(json_schema.schema)}
    return {"type": response_format.type, "json_schema": members}
