"""What the scripted engine says in these cases, whole or in a stream of the shape that a case wants."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lab.conform.apis.turn import ToolCall
from lab.scripted.arrival import Arrival, Script
from lab.scripted.scripts import chunk, streaming, whole
from serve.http1.sse import DONE, encode_frame

USAGE = {
    "prompt_tokens": 50,
    "completion_tokens": 30,
    "total_tokens": 80,
    "prompt_tokens_details": {"cached_tokens": 20},
}
ARGUMENTS = json.dumps({"city": "北京", "note": 'a \\ "b" \n\té <b>'}, ensure_ascii=True)
CALL = ToolCall("call_1", "look_up", ARGUMENTS)
OTHER_CALL = ToolCall("call_2", "look_up", '{"city": "Köln", "days": [1, 2.50, null]}')

Delta = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One answer of the model.

    Attributes:
        text: Its content.
        reasoning: What comes before.
        calls: Its calls.
        finish: The engine's finish reason.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"

    def completion(self) -> dict[str, Any]:
        """Returns it as a chat completion."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        message: dict[str, Any] = {"content": self.text or None} | _reasoning(self.reasoning)
        return whole(message | ({"tool_calls": calls} if calls else {}), self.finish, usage=USAGE)

    def deltas(self, size: int = 3) -> Iterator[Delta]:
        """Yields it as deltas of a few characters."""
        yield {"role": "assistant", "content": ""}
        for piece in pieces(self.reasoning, size):
            yield _reasoning(piece)
        for piece in pieces(self.text, size):
            yield {"content": piece}
        for index, call in enumerate(self.calls):
            yield opening(index, call)
            for piece in pieces(call.arguments, size):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def opening(index: int, call: ToolCall, arguments: str = "") -> Delta:
    """Returns the delta that begins a call."""
    function = {"name": call.name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}


def pieces(text: str, size: int) -> Iterator[str]:
    """Yields a text in pieces of some characters."""
    for at in range(0, len(text), size):
        yield text[at : at + size]


def saying(
    said: Said, deltas: Iterable[Delta] | None = None, cut: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
) -> Script:
    """Returns a script that gives an answer, whole or streamed, as the request asks for it; with usage if it asks.

    Args:
        said: The answer.
        deltas: Its deltas, instead of those of a few characters each.
        cut: Makes the writes of the frames.
    """
    parts = list(said.deltas() if deltas is None else deltas)

    async def script(arrival: Arrival) -> None:
        body = json.loads(arrival.body)
        if not body.get("stream"):
            await arrival.json(said.completion())
            return
        chunks = [*(chunk(part) for part in parts), chunk({}, said.finish)]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**chunk({}), "choices": [], "usage": USAGE})
        await streaming(cut([*map(encode_frame, chunks), DONE]))(arrival)

    return script


def _reasoning(text: str) -> dict[str, Any]:
    """Returns reasoning under both names that engines use."""
    return {"reasoning": text, "reasoning_content": text} if text else {}
