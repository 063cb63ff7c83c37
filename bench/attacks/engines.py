"""Engines that misbehave: a client has a sound answer or an explicit error, and others go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.attacks.answers import fault
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, Gateway
from lab.attacks.answers import STREAMS, WHOLES
from lab.scripted.arrival import Arrival

_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_USER = [{"role": "user", "content": "hello"}]
_MESSAGES = {"model": "m", "max_tokens": 99, "messages": _USER,
             "tools": [{"name": "f", "input_schema": {"type": "object"}}]}  # fmt: skip
_RESPONSES = {"model": "m", "input": "hello", "tools": [{"type": "function", "name": "f", "parameters": {}}]}
_ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CHAT, {"model": "m", "messages": _USER}),
    "guarded": (CHAT, {"model": "m", "messages": _USER, "tools": _TOOLS}),
    "json": (CHAT, {"model": "m", "messages": _USER, "response_format": {"type": "json_object"}}),
    "messages": ("/v1/messages", _MESSAGES),
    "responses": ("/v1/responses", _RESPONSES),
}


def _misbehaving(name: str, ask: str, streamed: bool, response: bytes) -> Attack:
    path, asked = _ASKS[ask]

    async def run(gateway: Gateway) -> str:
        reply = await gateway.post({**asked, "stream": streamed}, path)
        odd = reply.status == 200 and ask == "plain"  # what we do not read passes as it is
        said = fault(reply)
        if odd and not said.startswith(("no answer", "silence", "500", "an error")):
            return ""
        if reply.status == 500 and " 500 " in response[:20].decode("latin-1"):
            return ""  # the engine's own
        return said

    async def script(arrival: Arrival) -> None:
        await arrival.raw(response)
        if (not response.endswith(b"0\r\n\r\n") and b"content-length" not in response[:400]) or name in (
            "a length too long",
            "300 MB",
        ):
            arrival.transport.close()

    how = "streamed" if streamed else "whole"
    return Attack(f"engine: {name}, {ask}, {how}", run, script)


def _attacks() -> Iterator[Attack]:
    for name, response in STREAMS.items():
        for ask in _ASKS:
            yield _misbehaving(name, ask, True, response)
    for name, response in WHOLES.items():
        for ask in _ASKS:
            yield _misbehaving(name, ask, False, response)
    for name in ("two finish reasons", "no finish reason", "silence, then the end", "gzip", "no JSON"):
        yield _misbehaving(f"a stream to a whole request, {name}", "guarded", False, STREAMS[name])


ATTACKS = tuple(_attacks())
