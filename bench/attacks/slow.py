"""Clients that begin and do not go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

from bench.attacks.answers import says
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, MESSAGES, PATIENCE_S, RESPONSES, Gateway, request
from lab.attacks.answers import chunk, frame, stream
from lab.scripted.arrival import Arrival

_HELD = 2_000
_HOLD_S = 1.0
_BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
_UNREAD = 250
_LOOKS = 6
_MOST_MB = 1.0  # of memory for each
_TEXT = frame(chunk({"content": "and so on " * 20})) * 64
_SCHEMA = {"type": "object"}
_TOOL = {"name": "f", "parameters": _SCHEMA}
_HELLO = [{"role": "user", "content": "x"}]
_LONG = says(stream([frame(chunk({"content": "x" * 1_000}))] * 6_000 + [frame(chunk({}, "stop"))]))


def _asks(**body: object) -> bytes:
    return json.dumps({"model": "m", "stream": True, **body}).encode()


def _held(beginning: bytes, count: int = _HELD) -> Attack:
    async def run(gateway: Gateway) -> str:
        writers = []
        try:
            for _ in range(count):
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                writer.write(beginning)
                writers.append(writer)
            await asyncio.sleep(_HOLD_S)
            reply = await gateway.post(_BODY)
        finally:
            for writer in writers:
                writer.transport.abort()
        return "" if reply.status == 200 else f"another client had {reply.status}, {reply.ended}"

    return Attack(f"slow: {count} times {beginning[:20]!r}, {len(beginning)} bytes", run, _LONG)


async def _endless(arrival: Arrival) -> None:
    """Answers for ever, as fast as the gateway reads."""
    await arrival.begin()
    while not arrival.gone.is_set() and not arrival.transport.is_closing():
        await arrival.write(_TEXT)
        await asyncio.sleep(0)


def _unread(name: str, body: bytes, path: str) -> Attack:
    """Clients that ask for endless streams and read nothing of them."""

    async def run(gateway: Gateway) -> str:
        before_mb, most_mb = gateway.rss_mb(), 0.0
        lines: list[socket.socket] = []
        try:
            for _ in range(_UNREAD):
                line = socket.socket()
                line.setblocking(False)
                lines.append(line)
                await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", gateway.port))
                await asyncio.get_running_loop().sock_sendall(line, request(body, path))
            for _ in range(_LOOKS):
                await asyncio.sleep(_HOLD_S)
                most_mb = max(most_mb, gateway.rss_mb() - before_mb)
        finally:
            for line in lines:
                line.close()
        print(f"{name}: {most_mb / _UNREAD:.2f} MB a stream")
        return "" if most_mb < _UNREAD * _MOST_MB else f"{most_mb / _UNREAD:.2f} MB a stream"

    return Attack(f"unread: {_UNREAD} endless streams, {name}", run, _endless)


def _together(name: str, body: bytes, path: str) -> Attack:
    """Clients that ask at the same moment, and engines that all die at the same moment."""
    dying = asyncio.Event()

    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        await arrival.write(_TEXT)
        await dying.wait()
        arrival.transport.abort()

    async def run(gateway: Gateway) -> str:
        dying.clear()
        lines = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(_UNREAD)]
        try:
            for _, writer in lines:
                writer.write(request(body, path))
            heads = await asyncio.gather(*(reader.readline() for reader, _ in lines))
            dying.set()
            await asyncio.wait_for(asyncio.gather(*(_ended(reader) for reader, _ in lines)), PATIENCE_S)
        except TimeoutError:
            return "some do not end"
        finally:
            dying.set()
            for _, writer in lines:
                writer.transport.abort()
        return "" if all(b" 200 " in head for head in heads) else "some were refused"

    return Attack(f"together: {_UNREAD} streams begin, and break off, {name}", run, script)


async def _ended(reader: asyncio.StreamReader) -> None:
    """Returns when a chunked response is over, or the connection is."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n0\r\n\r\n")


_WHOLE = request(_BODY, CHAT)
_TOOLS = _asks(messages=_HELLO, tools=[{"type": "function", "function": _TOOL}])
_MESSAGES_TOOLS = _asks(messages=_HELLO, max_tokens=9, tools=[{"name": "f", "input_schema": _SCHEMA}])
_RESPONSES_TOOLS = _asks(input="x", tools=[{"type": "function", **_TOOL}])
ATTACKS = (
    _held(b""),
    _held(_WHOLE[:40]),
    _held(_WHOLE[: -len(_BODY)]),
    _held(_WHOLE[:-1]),
    _held(_WHOLE, 50),  # and nobody reads the answers
    _unread("plain", _BODY, CHAT),
    _unread("guarded", _TOOLS, CHAT),
    _unread("messages", _MESSAGES_TOOLS, MESSAGES),
    _unread("responses", _RESPONSES_TOOLS, RESPONSES),
    _together("plain", _BODY, CHAT),
    _together("guarded", _TOOLS, CHAT),
    _together("messages", _MESSAGES_TOOLS, MESSAGES),
    _together("responses", _RESPONSES_TOOLS, RESPONSES),
)
