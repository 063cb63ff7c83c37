"""HTTP over plain ASGI: reads a request's body, sends the response, and notices when the client disconnects."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any

from serve.http1.asgi import Receive, Send


class ClientGoneError(Exception):
    """The client closed the connection before the response was complete."""


class SimResponse:
    """The response to a request whose body has been read; a disconnecting client ends every pause with an error."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._disconnect: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SimResponse:
        self._disconnect = asyncio.create_task(self._disconnected())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._disconnect is not None
        self._disconnect.cancel()
        await asyncio.wait([self._disconnect])

    async def pause(self, seconds: float) -> None:
        """Wait, at least for one turn of the event loop.

        Raises:
            ClientGoneError: The client has closed the connection.
        """
        assert self._disconnect is not None
        if seconds > 0:
            await asyncio.wait([self._disconnect], timeout=seconds)
        else:
            await asyncio.sleep(0)
        if self._disconnect.done():
            raise ClientGoneError

    async def until(self, future: asyncio.Future[None]) -> None:
        """Wait for a future.

        Raises:
            ClientGoneError: The client has closed the connection.
        """
        assert self._disconnect is not None
        await asyncio.wait([self._disconnect, future], return_when=asyncio.FIRST_COMPLETED)
        if self._disconnect.done():
            raise ClientGoneError

    async def start_stream(self, headers: dict[str, str]) -> None:
        await _start(self._send, 200, {"content-type": "text/event-stream; charset=utf-8", **headers})

    async def send_bytes(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_json(self, status: int, payload: dict[str, Any], headers: dict[str, str]) -> None:
        await send_json(self._send, status, payload, headers)

    async def send_half(self, payload: dict[str, Any], headers: dict[str, str]) -> None:
        """Announce a response and send half of it; the server then drops the connection."""
        body = json.dumps(payload, ensure_ascii=False).encode()
        await _start(self._send, 200, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        await self.send_bytes(body[: len(body) // 2])

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def read_body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def send_json(send: Send, status: int, payload: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    body = json.dumps(payload, ensure_ascii=False).encode()
    await _send_whole(send, status, body, {"content-type": "application/json", **(headers or {})})


async def send_text(send: Send, status: int, text: str) -> None:
    await _send_whole(send, status, text.encode(), {"content-type": "text/plain; version=0.0.4"})


async def _send_whole(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    await _start(send, status, {**headers, "content-length": str(len(body))})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _start(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
