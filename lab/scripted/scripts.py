"""Bodies, frames and scripts of the scripted engine, in vLLM's wire format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from lab.scripted.arrival import Arrival, Script
from serve.http1.sse import DONE, encode_frame


def whole(message: Mapping[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """Returns a chat completion."""
    return {
        "id": "chatcmpl-conform",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "conform",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        **more,
    }


def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Returns a chat completion chunk."""
    return {
        "id": "chatcmpl-conform",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "conform",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def text_frames(texts: Iterable[str], finish: str | None = "stop") -> list[bytes]:
    """Returns a text as stream frames, one per part, without `[DONE]`."""
    opening = encode_frame(chunk({"role": "assistant", "content": ""}))
    ending = [encode_frame(chunk({}, finish))] if finish else []
    return [opening, *(encode_frame(chunk({"content": text})) for text in texts), *ending]


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def call_completion(arguments: str) -> dict[str, Any]:
    """Returns a chat completion with one call of `look_up`."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return whole({"content": None, "tool_calls": [call]}, "tool_calls")


def call_frames(arguments: str) -> list[bytes]:
    """Returns the same call as stream frames of a few characters each, without `[DONE]`."""
    opening = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}
    parts = [arguments[at : at + 3] for at in range(0, len(arguments), 3)]
    deltas = [opening, *({"index": 0, "function": {"arguments": part}} for part in parts)]
    return [*(encode_frame(chunk({"tool_calls": [delta]})) for delta in deltas), encode_frame(chunk({}, "tool_calls"))]


def error(message: str, status: int) -> dict[str, Any]:
    """Returns an error body in vLLM's format."""
    return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}


async def plain(arrival: Arrival) -> None:
    """Send a short answer: a chat or a text completion, whole or streamed, as requested."""
    body = json.loads(arrival.body)
    if not arrival.path.partition("?")[0].endswith("/chat/completions"):
        choice = {"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}
        await arrival.json({**whole({}), "object": "text_completion", "choices": [choice]})
    elif body.get("stream"):
        await streaming([*text_frames(["hel", "lo"]), DONE])(arrival)
    else:
        await arrival.json(whole({"content": "hello"}))


def answering(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """Returns a script that answers with one JSON body."""
    return lambda arrival: arrival.json(body, status, headers)


def streaming(pieces: Iterable[bytes], pause_s: float = 0.0) -> Script:
    """Returns a script that sends the given bytes, one write each, and ends the stream."""
    parts = list(pieces)

    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        for part in parts:
            await arrival.write(part)
            await asyncio.sleep(pause_s)

    return script


def dying(pieces: Iterable[bytes], pause_s: float = 0.1) -> Script:
    """Returns a script that begins a stream and breaks the connection once what it has sent has arrived."""
    parts = list(pieces)

    async def script(arrival: Arrival) -> None:
        await streaming(parts)(arrival)
        await asyncio.sleep(pause_s)
        await arrival.crash()

    return script


async def silent(arrival: Arrival) -> None:
    """Never answer, as in a long prefill."""
    await asyncio.Event().wait()


async def crash(arrival: Arrival) -> None:
    """Reset the connection without a response."""
    await arrival.crash()
