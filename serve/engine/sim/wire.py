"""The simulated engine's JSON: chunks, whole answers, usage and errors as vLLM writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serve.engine.sim.deltas import Delta, append_text
from serve.engine.sim.generation import Generation


def frame(payload: dict[str, Any] | str) -> bytes:
    """One SSE frame."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def fold(deltas: Sequence[Delta]) -> Delta:
    """The message that a sequence of deltas adds up to."""
    message: Delta = {}
    for delta in deltas:
        for field in ("reasoning", "content"):
            append_text(message, field, delta.get(field, ""))
        for entry in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in entry:
                opening = {key: value for key, value in entry.items() if key != "index"}
                calls.append({**opening, "function": dict(entry["function"])})
            else:
                calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    return message


class Envelope:
    """The fields that every object of one answer shares.

    Args:
        identity: The answer's id.
        model: Name of the model.
        created: Unix time in seconds.
        chat: Whether it answers `/v1/chat/completions` or else `/v1/completions`.
        prompt_tokens: For the usage.
    """

    def __init__(self, identity: str, model: str, created: int, *, chat: bool, prompt_tokens: int) -> None:
        self._common = {"id": identity, "created": created, "model": model}
        self._chat = chat
        self._prompt_tokens = prompt_tokens

    def chunk(self, index: int, delta: Delta, finish_reason: str | None = None) -> dict[str, Any]:
        said = (
            {"delta": delta, "logprobs": None} if self._chat else {"text": delta.get("content", ""), "logprobs": None}
        )
        choice = {"index": index, **said, "finish_reason": finish_reason}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._common, "object": kind, "choices": [choice]}

    def usage_chunk(self, generations: Sequence[Generation]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._common, "object": kind, "choices": [], **self._usage(generations)}

    def whole(self, generations: Sequence[Generation]) -> dict[str, Any]:
        choices = [self._choice(index, generation) for index, generation in enumerate(generations)]
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._common, "object": kind, "choices": choices, **self._usage(generations)}

    def _choice(self, index: int, generation: Generation) -> dict[str, Any]:
        message = fold(list(generation.deltas()))
        if not self._chat:
            said: dict[str, Any] = {"text": message.get("content", "")}
        else:
            filled = {"role": "assistant", "content": None, "reasoning": None, "tool_calls": [], **message}
            said = {"message": filled}
        return {"index": index, **said, "logprobs": None, "finish_reason": generation.finish_reason}

    def _usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        completion = sum(generation.completion_tokens for generation in generations)
        thought = sum(generation.reasoning_tokens for generation in generations)
        usage = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
        return {"usage": usage, **(generations[0].metrics() if len(generations) == 1 else {})}
