"""A request as it reached the scripted engine, and the type of the scripts that answer it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(eq=False)
class Arrival:
    """One request as it reached the engine.

    Attributes:
        path: Path with query.
        headers: (lower-case name, value) pairs in their original order.
        body: The body's bytes.
        gone: Set when the gateway closes the connection before the response is complete.
        sent: Bytes of the response that the operating system has accepted.
    """

    path: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0

    def header(self, name: str) -> str | None:
        """Returns the values of a header, joined; None if it is missing."""
        values = [value for header_name, value in self.headers if header_name == name]
        return ", ".join(values) if values else None


Script = Callable[[web.Request, Arrival], Awaitable[web.StreamResponse]]
