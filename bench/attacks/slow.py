"""Clients that begin and do not go on."""

from __future__ import annotations

import asyncio
import json
import socket

from bench.attacks.answers import says
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, MESSAGES, RESPONSES, Gateway, request
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


_WHOLE = request(_BODY, CHAT)
ATTACKS = (
    _held(b""),
    _held(_WHOLE[:40]),
    _held(_WHOLE[: -len(_BODY)]),
    _held(_WHOLE[:-1]),
    _held(_WHOLE, 50),  # and nobody reads the answers
    _unread("plain", _BODY, CHAT),
    _unread("guarded", _asks(messages=_HELLO, tools=[{"type": "function", "function": _TOOL}]), CHAT),
    _unread("messages", _asks(messages=_HELLO, max_tokens=9, tools=[{"name": "f", "input_schema": _SCHEMA}]), MESSAGES),
    _unread("responses", _asks(input="x", tools=[{"type": "function", **_TOOL}]), RESPONSES),
)
