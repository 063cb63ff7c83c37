"""A nearly free fake engine: prerendered answers, one socket write per chunk; runs as its own process."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from functools import partial
from typing import cast

import httptools
import uvloop

from bench.gateway import traffic

_PACE_S = 0.005
_ANSWERED = (b"/completions", b"/messages", b"/responses")  # the latter two only without a gateway between
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunked(frame: bytes) -> bytes:
    """One chunk of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def whole(body: bytes) -> bytes:
    """A complete JSON response."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _stream(frames: Sequence[bytes]) -> list[bytes]:
    parts = [chunked(frame) for frame in frames]
    return [_STREAM_HEAD + parts[0], *parts[1:-1], parts[-1] + b"0\r\n\r\n"]


TEXT = _stream(traffic.text_frames())
TOOL = _stream(traffic.tool_frames())
BROKEN = _stream(traffic.tool_frames(broken=True))
WHOLE = whole(traffic.whole_text())
MODELS = whole(b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}')


class FakeEngine(asyncio.Protocol):
    """Answers every request on one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body: list[bytes] = []
        self._transport: asyncio.Transport
        self._next: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next is not None:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()  # some gateways first ask whether we speak HTTP/2

    def on_url(self, url: bytes) -> None:
        self._target = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if not self._target.endswith(_ANSWERED):
            self._transport.write(MODELS)
        elif b'"stream":true' not in body and b'"stream": true' not in body:
            self._transport.write(WHOLE)
        elif b"broken" in self._target:
            self._send(BROKEN, 0, 0.0)
        elif b'"search"' in body:
            self._send(TOOL, 0, 0.0)
        else:
            self._send(TEXT, 0, _PACE_S if b"slowly" in body else 0.0)

    def _send(self, parts: list[bytes], place: int, pause_s: float) -> None:
        """One part now, the next in another turn of the loop: a packet each, as an engine sends its tokens."""
        self._transport.write(parts[place])
        if place + 1 < len(parts):
            send_next = partial(self._send, parts, place + 1, pause_s)
            self._next = self._loop.call_later(pause_s, send_next) if pause_s else self._loop.call_soon(send_next)


async def serve(port: int) -> None:
    """Answer on 127.0.0.1 until the process is told to end."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(FakeEngine, "127.0.0.1", port, backlog=1024)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()
    os._exit(0)  # whatever still streams has no reader any more


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    uvloop.run(serve(options.parse_args().port))
