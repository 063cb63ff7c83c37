"""A request as it reached the scripted engine, and what answers it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(eq=False)
class Arrival:
    """One request as it reached the engine.

    Attributes:
        path: With the query.
        headers: By lower-case name, in their order.
        body: As it came.
        gone: Set when the gateway closed the connection before the answer was complete.
        sent: Bytes of the answer that the operating system has taken.
    """

    path: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0

    def header(self, name: str) -> str | None:
        """The values of a header, joined; None if it did not come."""
        values = [value for known, value in self.headers if known == name]
        return ", ".join(values) if values else None


Script = Callable[[web.Request, Arrival], Awaitable[web.StreamResponse]]
