"""Clients that begin and do not go on."""

from __future__ import annotations

import asyncio

from bench.attacks.answers import says
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, Gateway, request
from lab.attacks.answers import chunk, frame, stream

_HELD = 2_000
_HOLD_S = 1.0
_BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
_LONG = says(stream([frame(chunk({"content": "x" * 1_000}))] * 6_000 + [frame(chunk({}, "stop"))]))


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


_WHOLE = request(_BODY, CHAT)
ATTACKS = (
    _held(b""),
    _held(_WHOLE[:40]),
    _held(_WHOLE[: -len(_BODY)]),
    _held(_WHOLE[:-1]),
    _held(_WHOLE, 50),  # and nobody reads the answers
)
