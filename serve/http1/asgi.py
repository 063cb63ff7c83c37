"""ASGI's types, and the body of a request read through them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from serve.errors import BodyTooLargeError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

# In a scope's `extensions`: our own listener brings the request, no Ray Serve around it. Its `write` sends a part.
FRONT = "specgate.front"


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The request's body, whole.

    Raises:
        BodyTooLargeError: It is, or says it is, longer than `limit` bytes.
    """
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes.")
