"""Heads and bodies that are framed oddly, or by another protocol."""

from __future__ import annotations

import asyncio
import json

from bench.attacks.attack import Attack
from bench.attacks.lab import Gateway, request
from lab.attacks.framing import CHUNKS, CODINGS, LENGTHS, LINES, Hidden
from lab.attacks.raw_requests import BODY, HALF, RAW, with_chunks

_QUIET_S = 0.3
_PATIENCE_S = 8.0


def _raw(name: str, raw: bytes) -> Attack:
    async def run(gateway: Gateway) -> str:
        reply = await gateway.send(raw, patience_s=_PATIENCE_S, quiet_s=_QUIET_S)
        if reply.status in (0, 500) and name not in HALF:
            return f"{reply.status}, {reply.ended}: {reply.raw[-200:]!r}"
        if reply.status >= 500 and reply.status not in (502, 503):
            return f"{reply.status}"
        after = await gateway.send(request(BODY))
        return "" if after.status == 200 else f"the next request had {after.status} {after.ended}"

    return Attack(f"framing: {name}", run)


def _hidden(kind: str, name: str, attack: Hidden) -> Attack:
    inside = request(BODY.replace(b'"x"', b'"hidden"'))
    first = attack.framed(BODY)
    lines = attack.lines(len(first), len(first) + len(inside))
    raw = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{lines}\r\n\r\n"

    async def run(gateway: Gateway) -> str:
        sent = raw.encode("latin-1") + first + inside
        reply = await gateway.send(sent, patience_s=_PATIENCE_S, quiet_s=_QUIET_S)
        asked = [json.loads(arrival.body)["messages"][0]["content"] for _, arrival in gateway.engine.arrivals]
        if len(asked) > 1 or "hidden" in asked:
            return "two requests for one"
        return f"{reply.status}" if reply.status >= 500 else ""

    return Attack(f"framing: hidden behind {kind}, {name}", run)


async def _halves(gateway: Gateway) -> str:
    """Half a request on each of many connections, which then leave."""
    whole = request(BODY)

    async def one(place: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(whole[:place])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    for start in range(0, len(whole), 50):
        await asyncio.gather(*(one(place) for place in range(start, min(start + 50, len(whole)))))
    return ""


async def _bytewise(gateway: Gateway) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    for byte in with_chunks(b"".join(b"1;x\r\n%c\r\n" % byte for byte in BODY) + b"0\r\na: b\r\n\r\n"):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(2**16), _PATIENCE_S)
    writer.close()
    return "" if answer.startswith(b"HTTP/1.1 200") else repr(answer[:100])


_HIDDEN = {"a length": LENGTHS, "a coding": CODINGS, "a line": LINES, "a chunk": CHUNKS}
ATTACKS = (
    *(_raw(name, raw) for name, raw in RAW.items()),
    *(_hidden(kind, name, attack) for kind, table in _HIDDEN.items() for name, attack in table.items()),
    Attack("framing: half a request, everywhere", _halves),
    Attack("framing: a byte at a time", _bytewise),
)
