"""Fields and headers of a client that no engine must get, in every spelling."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bench.attacks.answers import fault
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, COUNT, MESSAGES, RESPONSES, TEXT, Gateway

_SECRET = "SECRETSECRET"


def _leak(name: str, body: Callable[[], bytes], path: str, head: str = "") -> Attack:
    async def run(gateway: Gateway) -> str:
        reply = await gateway.post(body(), path, head)
        got = [asked for asked in gateway.engine.asked if _SECRET.encode() in asked.head + asked.body]
        return fault(reply) or ("it reached the engine" if got else "")

    return Attack(f"leak: {name}", run)


_FIELDS = ("kv_transfer_params", "chat_template", "prompt_embeds", "cache_salt", "request_id", "priority", "lora_path",
           "media_io_kwargs", "vllm_xargs", "api_base", "extra_headers", "logits_processors", "custom_logit_processor",
           "session_id", "mm_processor_kwargs", "data_parallel_rank", "rid", "input_embeds")  # fmt: skip
_HEADERS = ("api-key", "x-goog-api-key", "authorization", "x-amz-security-token", "baggage", "x-vllm-priority",
            "x-data-parallel-rank", "cookie", "x-specgate-pool", "x-forwarded-for", "forwarded", "anthropic-beta",
            "openai-organization", "x-stainless-os", "x-api-key", "proxy-authorization", "x-original-url",
            "x-http-method-override", "x-session-id", "x-request-id")  # fmt: skip


def _member(name: str) -> Iterator[tuple[str, str]]:
    value = json.dumps({"a": _SECRET})
    yield "", f'"{name}":{value}'
    yield " escaped", f'"\\u{ord(name[0]):04x}{name[1:]}":{value}'
    yield " twice", f'"{name}":null,"{name}":{value}'
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
        for name in _FIELDS:
            for how, member in _member(name):
                yield _leak(f"{name}{how} in {path}", sending(f"{start},{member}}}".encode()), path)
    plain = json.dumps(_SMALL[CHAT]).encode()
    for name in _HEADERS:
        for more in ("", "connection: accept\r\n"):
            yield _leak(f"header {name} {more.strip()}", sending(plain), CHAT, f"{more}{name}: {_SECRET}\r\n")


ATTACKS = tuple(_leaks())
