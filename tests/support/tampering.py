"""Gateways that are wrong in one place: our own, with what goes in or comes out of it changed.

Each row breaks the rule of one case of `specgate conform --api`, as some gateway has done.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.conform.client import Reply
from lab.conform.lab import Lab

Tampering = Callable[[bytes, Reply], Reply]


@dataclass(frozen=True)
class Wrong:
    """How a gateway is wrong.

    Attributes:
        request: Changes a body before the gateway has it.
        reply: Changes the response to such a body.
    """

    request: Callable[[bytes], bytes] = lambda body: body
    reply: Tampering = lambda _, reply: reply


@dataclass
class TamperedLab(Lab):
    """A lab whose gateway is wrong under one path.

    Attributes:
        path: Beginning of the path of the requests and responses that are changed.
        wrong: How.
    """

    path: str = ""
    wrong: Wrong = field(default_factory=Wrong)

    async def send(
        self, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST",
        path: str = "/v1/chat/completions",
    ) -> Reply:  # fmt: skip
        if not path.startswith(self.path):
            return await super().send(body, headers, method, path)
        raw = json.dumps(body, ensure_ascii=False).encode() if isinstance(body, dict) else body
        return self.wrong.reply(raw, await super().send(self.wrong.request(raw), headers, method, path))


def sends(old: str, new: str) -> Wrong:
    """Replaces a regular expression in every request."""
    return Wrong(request=lambda body: re.sub(old, new, body.decode()).encode())


def says(old: str, new: str, *, whole_only: bool = False) -> Wrong:
    """Replaces a regular expression in every response, or in whole ones alone."""

    def tamper(_: bytes, reply: Reply) -> Reply:
        if whole_only and reply.json() is None:
            return reply
        return replace(reply, body=re.sub(old, new, reply.body.decode(), flags=re.DOTALL).encode())

    return Wrong(reply=tamper)


def fails_at(word: str) -> Wrong:
    """Answers 500 to requests with a word in them."""
    return Wrong(reply=lambda body, reply: replace(reply, status=500) if word.encode() in body else reply)


def without_header(name: str) -> Wrong:
    """Loses a header."""
    return Wrong(reply=lambda _, reply: replace(reply, headers=tuple(h for h in reply.headers if h[0] != name)))


def with_status(old: int, new: int) -> Wrong:
    """Answers with another status."""
    return Wrong(reply=lambda _, reply: replace(reply, status=new) if reply.status == old else reply)


_LAST_EVENT = r"event: (?:(?!event: ).)*\Z"
_IN_BOTH = {
    "fields": sends('"temperature"', '"temperatur"'),
    "unknown-fields": fails_at("x_new_field"),
    "unknown-content": fails_at("hologram"),
    "unknown-model": sends("conform-no-such-model", "conform"),
    "whole-and-stream": says("Grü", "Gru", whole_only=True),
    "small-pieces": says("界", ""),
    "large-pieces": says("界", ""),
    "silence": says(_LAST_EVENT, ""),
    "call-shapes": says("look_up", "look_down"),
    "tool-loop": sends('"result 0"', '"result 1"'),
    "engine-dies": says(_LAST_EVENT, ""),
    "engine-fails": with_status(502, 400),
    "engine-400": says("temperature must not be 3", "Bad Request"),
    "engine-429": without_header("retry-after"),
}
TAMPERINGS: dict[str, dict[str, Wrong]] = {
    "messages": {
        **_IN_BOTH,
        "malformed": sends(r'"messages": \[\]', '"messages": [{"role": "user", "content": "hello"}]'),
        "order": says('"index":1', '"index":2'),
        "ends": says('"stop_reason":"max_tokens"', '"stop_reason":"end_turn"'),
        "ids": says('"msg_[^"]+"', '"msg_1"'),
        "usage": says('"output_tokens":30', '"output_tokens":0'),
        "thinking": says("thinking_delta", "text_delta"),
        "call-cut": says('"stop_reason":"max_tokens"', '"stop_reason":"end_turn"'),
        "thinking-kept": sends('"type": "thinking"', '"type": "redacted_thinking"'),
        "overflow": says("prompt is too long", "too long"),
        "count-tokens": says(r'"input_tokens":\d+', '"input_tokens":1'),
    },
    "responses": {
        **_IN_BOTH,
        "malformed": sends(r'"input": \[\]', '"input": "hello"'),
        "order": says('"sequence_number":9\\b', '"sequence_number":10'),
        "ends": says('"reason":"max_output_tokens"', '"reason":"content_filter"'),
        "ids": says('"resp_[^"]+"', '"resp_1"'),
        "usage": says('"output_tokens":30', '"output_tokens":0'),
        "thinking": says("reasoning_text", "output_text"),
        "call-cut": says("incomplete", "completed"),
        "thinking-kept": sends('"type": "reasoning"', '"type": "hologram"'),
        "overflow": says("context_length_exceeded", "bad_request"),
        "custom-tool": says("custom_tool_call", "function_call"),
        "input-tokens": says(r'"input_tokens":\d+', '"input_tokens":1'),
    },
}
