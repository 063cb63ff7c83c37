"""A request's prompt as parts that other prompts can share: the tools, then one part a message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lab.sim.kv_cache import Part

_CHARACTERS_PER_TOKEN = 4


def prompt_parts(body: Mapping[str, Any]) -> tuple[Part, ...]:
    """Returns the parts of a prompt, each with a key that stands for all the text up to its end."""
    chain = hashlib.blake2b(str(body.get("cache_salt") or "").encode("utf-8", "surrogatepass"), digest_size=16)
    parts = []
    for text in _texts(body):
        chain.update(text.encode("utf-8", "surrogatepass"))
        parts.append(Part(chain.digest(), max(1, len(text) // _CHARACTERS_PER_TOKEN)))
    return tuple(parts)


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    if body.get("tools"):
        yield json.dumps(body["tools"], ensure_ascii=False)
    for message in body.get("messages") or ():
        content = message.get("content") or ""
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        calls = message.get("tool_calls")
        yield f"{message.get('role')}\n{text}{json.dumps(calls, ensure_ascii=False) if calls else ''}"
    if "messages" not in body:
        prompt = body.get("prompt") or ""
        yield prompt if isinstance(prompt, str) else json.dumps(prompt)
