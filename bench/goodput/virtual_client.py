"""Requests to a simulated engine without sockets, in virtual time: times of its tokens as a client sees them."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve.http1.asgi import AsgiApp


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer.

    Attributes:
        began_s: When it was asked for.
        first_s: When its first token arrived.
        end_s: When it was complete.
        usage: The engine's own count, its report on drafts included.
    """

    began_s: float
    first_s: float
    end_s: float
    usage: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return int(self.usage["usage"]["completion_tokens"])


async def ask(app: AsgiApp, body: Mapping[str, Any]) -> Answer:
    """Sends one chat request and reads its stream.

    Args:
        app: The engine.
        body: The request; asked as a stream with usage.
    """
    clock = asyncio.get_running_loop().time
    full = {**body, "stream": True, "stream_options": {"include_usage": True}}
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    pending = [{"type": "http.request", "body": json.dumps(full).encode(), "more_body": False}]
    arrived: list[tuple[float, bytes]] = []

    async def receive() -> dict[str, Any]:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            arrived.append((clock(), message["body"]))

    began_s = clock()
    await app(scope, receive, send)
    frames = [(at, json.loads(data[6:])) for at, data in arrived if data.startswith(b"data: {")]
    first_s = next(at for at, frame in frames if any(_has_text(choice["delta"]) for choice in frame["choices"]))
    usage = next(frame for _, frame in frames if not frame["choices"])
    return Answer(began_s, first_s, frames[-1][0], usage)


def _has_text(delta: Mapping[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning", "tool_calls"))
