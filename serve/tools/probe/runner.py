"""Sending a probe's requests and judging the answers with the guard's own eyes."""

import asyncio
import time
from collections.abc import AsyncIterable, Callable
from typing import Any
from zlib import crc32

import httpx
from openai import AsyncOpenAI, OpenAIError

from serve.config.guard import GuardConfig
from serve.guard.core import check_answer
from serve.tools.probe.grid import Cell
from serve.tools.probe.record import Record

_JUDGE = GuardConfig(mode="observe", schema="warn")
_OURS = ("chat_template_kwargs", "enable_speculative")  # fields that the client library does not know


async def run(
    client: AsyncOpenAI,
    work: list[tuple[Cell, int]],
    make: Callable[[Cell], dict[str, Any]],
    record: Record,
    concurrency: int,
    advance: Callable[[], None],
) -> None:
    """Run the trials, a few at a time.

    Args:
        client: For the endpoint.
        work: Cells with the number of the trial.
        make: The request of a cell.
        record: Where the trials go.
        concurrency: Requests in flight.
        advance: Called after each trial.
    """
    pending = iter(work)

    async def worker() -> None:
        for cell, number in pending:
            record.add({"cell": cell.name, "trial": number, **await _trial(client, make(cell), _seed(cell, number))})
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(work))):
            group.create_task(worker())


def _seed(cell: Cell, number: int) -> int:
    """Its own for every trial: cells that share seeds share answers, and the interval of their sum is too narrow."""
    return crc32(f"{cell.name} {number}".encode())


async def _trial(client: AsyncOpenAI, request: dict[str, Any], seed: int) -> dict[str, Any]:
    started = time.monotonic()
    sent = {name: value for name, value in request.items() if name not in _OURS}
    extra = {name: value for name, value in request.items() if name in _OURS}
    try:
        raw = await client.chat.completions.with_raw_response.create(**sent, seed=seed, extra_body=extra)
        parsed: Any = raw.parse()
        answer = await fold(parsed) if request["stream"] else parsed.model_dump()
    except (OpenAIError, httpx.HTTPError) as error:  # the client wraps what breaks before the answer, not within
        return {"outcome": "error", "detail": f"{type(error).__name__}: {error}"[:300]}
    return {
        **judge(request, answer),
        "pool": raw.headers.get("x-specgate-pool"),
        "speculative": raw.headers.get("x-specgate-speculative"),
        "seconds": round(time.monotonic() - started, 3),
    }


def judge(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """What the guard says of an answer; one that was cut by its length limit proves nothing."""
    choice = answer["choices"][0] if answer.get("choices") else {}
    calls = len((choice.get("message") or {}).get("tool_calls") or ())
    verdict = check_answer(_JUDGE, request, answer)
    if not verdict.counts or choice.get("finish_reason") == "length":
        return {"outcome": "cut", "calls": calls}
    details = [defect.detail for defect in verdict.defects]
    return {"outcome": str(verdict.outcome), "calls": calls, **({"detail": "; ".join(details)} if details else {})}


async def fold(stream: AsyncIterable[Any]) -> dict[str, Any]:
    """A stream's chunks as the whole answer that a client would put together from them."""
    texts: dict[str, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    async for chunk in stream:
        for choice in chunk.model_dump().get("choices") or ():
            reason = choice.get("finish_reason") or reason
            delta = choice.get("delta") or {}
            for name in ("content", "reasoning", "reasoning_content"):
                if delta.get(name):
                    texts[name] = texts.get(name, "") + delta[name]
            for entry in delta.get("tool_calls") or ():
                _add(calls, entry)
    message: dict[str, Any] = {"role": "assistant", "content": None, **texts}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def _add(calls: dict[int, dict[str, Any]], entry: dict[str, Any]) -> None:
    call = calls.setdefault(entry["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = entry.get("id") or call["id"]
    function = entry.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
