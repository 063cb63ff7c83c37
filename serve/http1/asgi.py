"""ASGI's types, back-pressure as this package hands it on."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

# Returned by a write: pending until the peer has taken enough of what was written; None while it can take more.
Drain = asyncio.Future[None] | None
Sink = Callable[[bytes], Drain]

# A key of a scope's `extensions`, set where this package's listener serves the request itself. Its value has two
# methods: `write`, a `Sink` that sends a part of the response's body from the event loop, without a task that awaits
# `send`; and `belong_to`, which takes the name of the request's owner and raises a `GatewayError` if the owner's bodies
# hold too much memory already.
DIRECT = "specgate.direct"
