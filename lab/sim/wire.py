"""The simulated engine's JSON: chunks, whole completions, usage and errors, as vLLM writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.deltas import fold_deltas
from lab.sim.deltas import Delta
from lab.sim.generation import Generation


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


class ResponseBuilder:
    """Builds the JSON objects of one response, which share their id, time and model.

    Args:
        identity: The completion's id.
        model: Name of the model.
        created: Unix time in seconds.
        chat: True for `/v1/chat/completions`, False for `/v1/completions`.
        prompt_tokens: Reported in the usage.
    """

    def __init__(self, identity: str, model: str, created: int, *, chat: bool, prompt_tokens: int) -> None:
        self._common = {"id": identity, "created": created, "model": model}
        self._chat = chat
        self._prompt_tokens = prompt_tokens

    def chunk(self, index: int, delta: Delta, finish_reason: str | None = None) -> dict[str, Any]:
        part: Delta = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        choice = {"index": index, **part, "logprobs": None, "finish_reason": finish_reason}
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
        message = fold_deltas(generation.deltas())
        if not self._chat:
            part: dict[str, Any] = {"text": message.get("content", "")}
        else:
            filled = {"role": "assistant", "content": None, "reasoning": None, "tool_calls": [], **message}
            part = {"message": filled}
        return {"index": index, **part, "logprobs": None, "finish_reason": generation.finish_reason}

    def _usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        completion = sum(generation.completion_tokens for generation in generations)
        reasoning = sum(generation.reasoning_tokens for generation in generations)
        usage = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        return {"usage": usage, **(generations[0].metrics() if len(generations) == 1 else {})}
