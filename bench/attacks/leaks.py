"""Fields and headers of a client that no engine must get, in every spelling."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bench.attacks.answers import fault
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, COUNT, MESSAGES, RESPONSES, TEXT, Gateway
from lab.attacks.fields import ADDRESSES, CREDENTIALS, FIELDS, STEERING, spellings

_SECRET = "SECRETSECRET"


def _leak(name: str, body: Callable[[], bytes], path: str, head: str = "") -> Attack:
    async def run(gateway: Gateway) -> str:
        reply = await gateway.post(body(), path, head)
        arrivals = [*gateway.engine.strays, *(arrival for _, arrival in gateway.engine.arrivals)]
        got = [each for each in arrivals if _SECRET.encode() in each.body or _SECRET in f"{each.path} {each.headers}"]
        return fault(reply) or ("it reached the engine" if got else "")

    return Attack(f"leak: {name}", run)


_MORE = ("vllm_xargs", "api_base", "extra_headers", "session_id", "rid")
_HEADERS = sorted({*CREDENTIALS, *ADDRESSES, *STEERING, "authorization", "x-specgate-pool", "anthropic-beta",
                   "openai-organization", "x-stainless-os", "x-session-id", "x-request-id"})  # fmt: skip


def _member(name: str) -> Iterator[tuple[str, str]]:
    value = json.dumps({"a": _SECRET})
    yield from ((how and f" {how}", member) for how, member in spellings(name, value).items())
    yield " as text", f'"{name}":"{_SECRET}"'


_SMALL: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    TEXT: {"model": "m", "prompt": "x"},
    MESSAGES: {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
    COUNT: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    RESPONSES: {"model": "m", "input": "x"},
}


def _leaks() -> Iterator[Attack]:
    def sending(body: bytes) -> Callable[[], bytes]:
        return lambda: body

    for path, small in _SMALL.items():
        start = json.dumps(small)[:-1]
        for name in (*FIELDS, *_MORE):
            for how, member in _member(name):
                yield _leak(f"{name}{how} in {path}", sending(f"{start},{member}}}".encode()), path)
    plain = json.dumps(_SMALL[CHAT]).encode()
    for name in _HEADERS:
        for more in ("", "connection: accept\r\n"):
            yield _leak(f"header {name} {more.strip()}", sending(plain), CHAT, f"{more}{name}: {_SECRET}\r\n")


ATTACKS = tuple(_leaks())
