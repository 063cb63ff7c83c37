"""A request at the scripted engine, the ways to answer it, and the type of the scripts that do."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


def chunked(data: bytes) -> bytes:
    """Returns bytes as one chunk of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: int, headers: Mapping[str, str], version: str = "1.1") -> bytes:
    """Returns the head of a response."""
    phrase = _PHRASES.get(status, "")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/{version} {status} {phrase}\r\n{lines}\r\n".encode("latin-1")


@dataclass(eq=False)
class Arrival:
    """One request as it reached the engine.

    Attributes:
        path: Path with query.
        headers: (lower-case name, value) pairs in their original order.
        body: The body's bytes.
        transport: The connection, for what no method here writes.
        writable: Set while the connection takes more bytes.
        version: HTTP version of the request.
        gone: Set when the gateway closes the connection before the response is complete.
        sent: Bytes of the response that the operating system has accepted.
    """

    path: str
    headers: list[tuple[str, str]]
    body: bytes
    transport: asyncio.Transport = field(repr=False)
    writable: asyncio.Event = field(repr=False)
    version: str = "1.1"
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    _begun: bool = False
    _ended: bool = False
    _chunked: bool = False

    def header(self, name: str) -> str | None:
        """Returns the values of a header, joined; None if it is missing."""
        values = [value for header_name, value in self.headers if header_name == name]
        return ", ".join(values) if values else None

    @property
    def streamed(self) -> bool:
        """True if the request asks for a stream."""
        return b'"stream": true' in self.body or b'"stream":true' in self.body

    async def raw(self, data: bytes) -> None:
        """Sends bytes as they are; a response that is sent so is complete when the script ends."""
        self._begun = self._ended = True
        await self._send(data)
        self.sent += len(data)

    async def begin(self, headers: Mapping[str, str] = STREAM_HEADERS, status: int = 200) -> None:
        """Sends the head of a response; its body is chunked if `headers` gives no length."""
        self._begun = True
        self._chunked = not any(name.lower() == "content-length" for name in headers) and self.version != "1.0"
        coding = {"transfer-encoding": "chunked"} if self._chunked else {}
        await self._send(head(status, {**headers, **coding}))

    async def write(self, data: bytes) -> None:
        """Sends a piece of the body, in one write."""
        if data:
            await self._send(chunked(data) if self._chunked else data)
            self.sent += len(data)

    async def end(self) -> None:
        """Ends the body; the end of a script does so too."""
        if self._begun and not self._ended:
            self._ended = True
            if self._chunked:
                await self._send(b"0\r\n\r\n")
            elif self.version == "1.0":
                self.transport.close()

    async def json(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole response."""
        data = json.dumps(body).encode()
        kind = {"content-type": "application/json", **(headers or {}), "content-length": str(len(data))}
        await self.raw(head(status, kind) + data)

    async def crash(self) -> None:
        """Resets the connection, like an engine that dies."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
        self.transport.abort()
        await asyncio.Event().wait()  # until cancelled: nobody is left to answer

    async def hang_up(self) -> None:
        """Closes the connection once what was sent has arrived, whatever is missing of the response."""
        self.transport.close()
        await asyncio.Event().wait()

    async def _send(self, data: bytes) -> None:
        self.transport.write(data)
        await self.writable.wait()


Script = Callable[[Arrival], Awaitable[None]]
