"""Sends an example request through the OpenAI SDK and collects its answer, streamed or whole."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import openai

from lab.deltas import fold_deltas
from lab.demo.examples import Example, ExampleResult

_DRAFTS = {"x-specgate-drafts": "true"}


async def ask(client: openai.AsyncOpenAI, model: str, example: Example) -> ExampleResult:
    """Send one example and return its result.

    Args:
        client: Client of the gateway.
        model: The model to ask.
        example: The request to send.
    """
    started = time.monotonic()
    request = {
        "model": model,
        "messages": [{"role": "user", "content": example.prompt}],
        "temperature": 0,
        "max_tokens": 250,
    }
    send: Callable[..., Awaitable[ExampleResult]] = _streamed if example.stream else _whole
    try:
        result = await send(client, {**request, **example.more})
    except openai.APIStatusError as error:
        result = ExampleResult(headers=error.response.headers, error=error)
    result.elapsed_ms = (time.monotonic() - started) * 1000
    return result


async def _whole(client: openai.AsyncOpenAI, request: dict[str, Any]) -> ExampleResult:
    raw = await client.chat.completions.with_raw_response.create(**request, extra_headers=_DRAFTS)
    answer = raw.parse()
    choice = answer.choices[0]
    calls = [(call.function.name, _arguments(call.function.arguments)) for call in choice.message.tool_calls or []]
    metrics = (answer.model_extra or {}).get("metrics") or {}
    return ExampleResult(
        raw.headers, choice.message.content or "", calls, choice.finish_reason, metrics.get("speculative_decoding")
    )


async def _streamed(client: openai.AsyncOpenAI, request: dict[str, Any]) -> ExampleResult:
    async with client.chat.completions.with_streaming_response.create(
        **request, stream=True, stream_options={"include_usage": True}, extra_headers=_DRAFTS
    ) as raw:
        result = ExampleResult(raw.headers)
        deltas = []
        async for chunk in await raw.parse():
            metrics = (chunk.model_extra or {}).get("metrics") or {}
            result.speculation = metrics.get("speculative_decoding") or result.speculation
            for choice in chunk.choices:
                result.finish = choice.finish_reason or result.finish
                deltas.append(choice.delta.model_dump())
    message = fold_deltas(deltas)
    result.content = message.get("content", "")
    functions = [call["function"] for call in message.get("tool_calls", ())]
    result.calls = [(function["name"], _arguments(function["arguments"])) for function in functions]
    return result


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return f"broken JSON: {text}"
