"""ASGI's types, back-pressure as this package hands it on, and the body of a request."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from serve.errors import BodyTooLargeError

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

# Returned by a write: pending until the peer has taken enough of what was written; None while it can take more.
Drain = asyncio.Future[None] | None
Sink = Callable[[bytes], Drain]

# A key of a scope's `extensions`, set where this package's listener serves the request itself. Its value has `write`, a
# `Sink` that sends a part of the response's body from the event loop, without a task that awaits `send`.
DIRECT = "specgate.direct"


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """Reads the whole body of a request.

    Args:
        receive: ASGI's.
        headers: The request's, by lower-case name.
        limit: Longest body in bytes.

    Raises:
        BodyTooLargeError: The body is longer than `limit`, or its content-length is.
        asyncio.CancelledError: The client left before the body was complete.
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
