"""Custom tools of chat completions: functions of one string for the engine, plain text for the client.

Engines know functions only. The tools are read as those of the Responses API, in the nested shape of chat and in the
flat one, which Cursor sends; the answer gets its custom calls back in its last stage.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from serve.dialects.answer import mapping, mappings
from serve.dialects.body import read_object, within_depth, written
from serve.dialects.responses.tools import CustomText, ToolTable, custom_arguments, read_choice, read_tools
from serve.http1.message import RawHeaders
from serve.http1.sse import decode_chunk
from serve.http1.turns import LONG_BYTES, beside
from serve.proxy.exchange import Api, Exchange
from serve.stream.frame import ARGUMENTS, Frame
from serve.stream.line import Stage

_CALLS = b'"tool_calls"'


@within_depth()
def decode(body: bytes) -> tuple[bytes, ToolTable]:
    """Returns the body of a chat completion with functions in place of custom tools, and the table of its tools.

    Raises:
        InvalidRequestError: The tools, or the choice among them, can't be served.
    """
    chat = read_object(body)
    table = read_tools(mappings(chat.get("tools")))
    if table.functions:
        chat["tools"], chat["tool_choice"] = read_choice(chat.get("tool_choice"), table)
    for message in mappings(chat.get("messages")):
        if calls := mappings(message.get("tool_calls")):
            message["tool_calls"] = list(map(_as_function, calls))
    return written(chat, len(body)), table


def _as_function(call: dict[str, Any]) -> dict[str, Any]:
    custom = call.get("custom")
    if not isinstance(custom, dict):
        return call
    function = {"name": custom.get("name"), "arguments": custom_arguments(custom.get("input"))}
    return {"id": call.get("id"), "type": "function", "function": function}


class CustomToolsApi(Api):
    """Chat completions of a request that offers custom tools, given the table of its tools."""

    def __init__(self, tools: ToolTable) -> None:
        self._stage = CustomCalls(tools)

    @property
    def last(self) -> Sequence[Stage]:
        return (self._stage,)

    async def close(self, exchange: Exchange, frames: Sequence[Frame]) -> bytes:
        return await super().close(exchange, [passed for frame in frames for passed in self._stage.feed(frame)])

    async def whole(self, exchange: Exchange, status: int, headers: RawHeaders, body: bytes) -> None:
        if status == 200:
            body = await beside(len(body) >= LONG_BYTES, self._stage.whole, body)
        await super().whole(exchange, status, headers, body)


class CustomCalls(Stage):
    """Makes custom calls of the calls of functions that stand for custom tools."""

    exact = False

    def __init__(self, tools: ToolTable) -> None:
        self._tools = tools
        self._texts: dict[tuple[Any, Any], CustomText | None] = {}  # by choice and index; None for a function

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with its calls as the client has their tools."""
        template = frame.template
        is_text = template is not None and template.place.field != ARGUMENTS
        if is_text or (frame.raw and frame.raw.find(_CALLS) < 0) or (chunk := frame.readable()) is None:
            return (frame,)
        return (Frame.of(self._changed(chunk, "delta")),)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole answer with its calls as the client has their tools.

        Raises:
            EngineError: It is no JSON object.
        """
        return msgspec.json.encode(self._changed(decode_chunk(body), "message"))

    def _changed(self, chunk: dict[str, Any], member: str) -> dict[str, Any]:
        """Returns a chunk, or with the member `message` a whole answer, with its calls changed."""
        choices = []
        for choice in mappings(chunk.get("choices")):
            said = mapping(choice.get(member))
            given = enumerate(mappings(said.get("tool_calls")))
            calls = [self._call((choice.get("index"), call.get("index", place)), call) for place, call in given]
            choices.append({**choice, member: {**said, "tool_calls": calls}} if calls else choice)
        return {**chunk, "choices": choices} if choices else chunk

    def _call(self, place: tuple[Any, Any], call: dict[str, Any]) -> dict[str, Any]:
        """Returns a call, or more of it."""
        function = mapping(call.get("function"))
        begins = place not in self._texts
        if begins:
            is_custom = self._tools.client_tool(str(function.get("name"))).kind == "custom"
            self._texts[place] = CustomText() if is_custom else None
        if (text := self._texts[place]) is None:
            return call
        named = {"name": function.get("name")} if begins else {}
        custom = {**named, "input": text.feed(function.get("arguments") or "")}
        kept = {name: value for name, value in call.items() if name != "function"}
        return {**kept, **({"type": "custom"} if begins else {}), "custom": custom}
