"""Bodies, frames and scripts of the scripted engine, in vLLM's wire format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from lab.conform.arrival import Arrival, Script
from serve.http1.sse import DONE, encode_frame

STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


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


async def begin(request: web.Request, headers: Mapping[str, str] = STREAM_HEADERS) -> web.StreamResponse:
    """Send the head of a stream."""
    response = web.StreamResponse(headers=dict(headers))
    await response.prepare(request)
    return response


async def plain(request: web.Request, arrival: Arrival) -> web.StreamResponse:
    """Send a short answer: a chat or a text completion, whole or streamed, as requested."""
    body = json.loads(arrival.body)
    if not request.path.endswith("/chat/completions"):
        choice = {"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}
        return web.json_response({**whole({}), "object": "text_completion", "choices": [choice]})
    if body.get("stream"):
        return await streaming([*text_frames(["hel", "lo"]), DONE])(request, arrival)
    return web.json_response(whole({"content": "hello"}))


def answering(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """Returns a script that answers with one JSON body."""

    async def script(_: web.Request, __: Arrival) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return script


def streaming(pieces: Iterable[bytes], pause_s: float = 0.0) -> Script:
    """Returns a script that sends the given bytes, one write each, and ends the stream."""
    parts = list(pieces)

    async def script(request: web.Request, arrival: Arrival) -> web.StreamResponse:
        response = await begin(request)
        for part in parts:
            await response.write(part)
            arrival.sent += len(part)
            await asyncio.sleep(pause_s)
        await response.write_eof()
        return response

    return script
