"""What the scripted engine says, and whether what a client got of it is sound."""

from __future__ import annotations

import json

from bench.attacks.lab import Reply
from lab.attacks.answers import body, chunk, entry, frame, stream, whole
from lab.scripted.arrival import Arrival, Script


def says(streamed: bytes, otherwise: bytes | None = None) -> Script:
    """Returns the script that writes one response to streamed requests, and another to the others."""

    async def script(arrival: Arrival) -> None:
        await arrival.raw(streamed if arrival.streamed or otherwise is None else otherwise)

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
