"""ASGI's types, and our own for back-pressure."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

# Pending until the peer has taken enough; None while it can take more.
Drain = asyncio.Future[None] | None
Sink = Callable[[bytes], Drain]

# In a scope's `extensions`: our own listener brings the request, no Ray Serve around it. Its `write` sends a part.
FRONT = "specgate.front"
