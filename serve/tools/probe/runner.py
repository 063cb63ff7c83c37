"""Sends a probe's requests and checks the answers with the guard's own code."""

import asyncio
import os
import time
from collections.abc import AsyncIterable, Callable
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

from serve.config.guard import GuardConfig
from serve.errors import ConfigError
from serve.guard.core import check_answer
from serve.parsing.deltas import fold_deltas
from serve.tools.probe.k2vv import RequestSet, calls_are_valid
from serve.tools.probe.plan import Cell, ProbePlan
from serve.tools.probe.trial_log import TrialLog

_GUARD_SETTINGS = GuardConfig(mode="observe", schema="warn")
_OF_THE_SDK = ("model", "messages", "stream")  # everything else goes into the body as it is


async def run(plan: ProbePlan, log: TrialLog, advance: Callable[[], None]) -> None:
    """Run the trials that the log does not have yet.

    Args:
        plan: The experiment.
        log: Holds earlier trials and receives the new ones.
        advance: Called after each trial.

    Raises:
        ConfigError: The environment variable for the API key is not set.
    """
    pending = plan.pending(log.done)
    trials = iter(pending)

    async def worker(client: AsyncOpenAI) -> None:
        for cell, number in trials:
            result = await _trial(client, plan.request(cell, number))
            log.add({"cell": cell.name, "trial": number, **_place(cell, number), **result})
            advance()

    async with (
        AsyncOpenAI(
            base_url=plan.base_url, api_key=_api_key(plan.api_key_env), timeout=plan.timeout_s, max_retries=0
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(min(plan.concurrency, len(pending))):
            group.create_task(worker(client))


def _api_key(variable: str | None) -> str:
    if variable is None:
        return "none"
    if variable not in os.environ:
        raise ConfigError(f"the environment variable {variable} is not set")
    return os.environ[variable]


def _place(cell: Cell, number: int) -> dict[str, int]:
    return {"data_index": cell.data_index(number)} if isinstance(cell, RequestSet) else {}


async def _trial(client: AsyncOpenAI, request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    fields = {name: request[name] for name in _OF_THE_SDK}
    extra = {name: value for name, value in request.items() if name not in _OF_THE_SDK}
    try:
        raw = await client.chat.completions.with_raw_response.create(**fields, extra_body=extra)
        parsed: Any = raw.parse()
        answer = await _folded(parsed) if request["stream"] else parsed.model_dump()
    except (OpenAIError, httpx.HTTPError) as error:  # the SDK wraps errors before the response, not within it
        return {"outcome": "error", "detail": f"{type(error).__name__}: {error}"[:300]}
    return {
        **check(request, answer),
        "pool": raw.headers.get("x-specgate-pool"),
        "speculative": raw.headers.get("x-specgate-speculative"),
        "seconds": round(time.monotonic() - started, 3),
    }


def check(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the guard's verdict on an answer, and the verifier's on its calls.

    An answer that hit its length limit is `cut` and proves nothing.
    """
    choice = answer["choices"][0] if answer.get("choices") else {}
    message, reason = choice.get("message") or {}, choice.get("finish_reason")
    facts: dict[str, Any] = {"calls": len(message.get("tool_calls") or ()), "finish_reason": reason}
    if reason == "tool_calls":
        facts["tool_calls_valid"] = calls_are_valid(request, message)
    verdict = check_answer(_GUARD_SETTINGS, request, answer)
    if not verdict.counts or reason == "length":
        return {"outcome": "cut", **facts}
    details = [defect.detail for defect in verdict.defects]
    return {"outcome": str(verdict.outcome), **facts, **({"detail": "; ".join(details)} if details else {})}


async def _folded(stream: AsyncIterable[Any]) -> dict[str, Any]:
    """Returns the whole answer that a client would put together from a stream."""
    deltas = []
    reason = None
    async for chunk in stream:
        for choice in chunk.model_dump().get("choices") or ():
            reason = choice.get("finish_reason") or reason
            deltas.append(choice.get("delta") or {})
    message = {"role": "assistant", "content": None, **fold_deltas(deltas)}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
