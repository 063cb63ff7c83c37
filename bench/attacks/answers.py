"""What the scripted engine says, and whether what a client got of it is sound."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from bench.attacks.lab import Asked, Reply, Script

_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Returns a chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def whole(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """Returns a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage,
            **more}  # fmt: skip


def entry(arguments: str, name: str = "f", index: int = 0) -> dict[str, Any]:
    """Returns a call."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call{index}", "type": "function", "function": function}


def frame(payload: Any) -> bytes:
    """Returns one frame."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    """Returns bytes as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(frames: Iterable[bytes], *, done: bool = True) -> bytes:
    """Returns a whole response that streams frames, a chunk each."""
    return _STREAM + b"".join(map(chunked, [*frames, DONE] if done else frames)) + b"0\r\n\r\n"


def body(payload: Any, status: str = "200 OK", head: str = "") -> bytes:
    """Returns a whole response."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    kind = "" if "content-type" in head else "content-type: application/json\r\n"
    return f"HTTP/1.1 {status}\r\n{kind}{head}content-length: {len(data)}\r\n\r\n".encode() + data


def says(streamed: bytes, otherwise: bytes | None = None) -> Script:
    """Returns the script that writes one response to streamed requests, and another to the others."""

    async def script(asked: Asked) -> None:
        asked.writer.write(streamed if asked.streamed or otherwise is None else otherwise)

    return script


def calls(*arguments: str, name: str = "f") -> Script:
    """Returns the script that answers with calls of one tool."""
    entries = [entry(text, name, index) for index, text in enumerate(arguments)]
    return says(
        stream([frame(chunk({"tool_calls": entries})), frame(chunk({}, "tool_calls"))]),
        body(whole({"content": None, "tool_calls": entries}, "tool_calls")),
    )


def text(content: str) -> Script:
    """Returns the script that answers with text."""
    return says(
        stream([frame(chunk({"content": content})), frame(chunk({}, "stop"))]), body(whole({"content": content}))
    )


HELLO = text("hello")


def fault(reply: Reply) -> str:
    """Returns what is wrong with a reply to a chat request; empty if it is an answer, or says why it is none."""
    if reply.ended == "hang":
        return "no answer"
    if reply.status == 0:
        return f"silence, {reply.ended}"
    if reply.status == 500:
        return f"500: {reply.body[:120]!r}"
    if reply.status != 200:
        return "" if reply.is_error else f"{reply.status} without an error: {reply.body[:120]!r}"
    if b"text/event-stream" in reply.head.lower():
        return _stream_fault(reply)
    if reply.ended not in ("complete", "quiet"):
        return f"cut off, {reply.ended}"
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return "" if isinstance(answer, dict) else "no object"


def _stream_fault(reply: Reply) -> str:
    found = reply.body
    done = b"data: [DONE]" in found[-200:] or b"message_stop" in found[-400:] or b"response.completed" in found
    if reply.is_error:
        return "an error, then done" if done else ""
    if not done:
        return f"a stream without an end, {reply.ended}: {found[-80:]!r}"
    if (
        b"[DONE]" in found
        and b'"finish_reason":null' in found
        and found.count(b"finish_reason")
        == found.count(b'"finish_reason":null') + found.count(b'"finish_reason": null')
    ):
        return "done without a finish reason"
    return ""
