"""Sends a probe's requests, checks the answers with the guard's own code, and asks the judge about broken ones."""

import asyncio
import os
import time
from collections.abc import AsyncIterable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import httpx
from openai import APIConnectionError, AsyncOpenAI, OpenAIError

from lab.deltas import fold_deltas
from lab.probe.check import check
from lab.probe.k2vv import RequestSet
from lab.probe.plan import Cell, ProbePlan, with_version
from lab.probe.trace import Trace, cause
from lab.probe.trial_log import BLAMELESS, REFUSED, TrialLog
from serve.errors import ConfigError

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

    async def worker(client: AsyncOpenAI, judge: AsyncOpenAI | None) -> None:
        for cell, number in trials:
            result = await _trial(client, judge, plan.request(cell, number))
            log.add({"cell": cell.name, "trial": number, **_place(cell, number), **result})
            advance()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(plan, plan.base_url))
        judge = await stack.enter_async_context(client_of(plan, with_version(plan.judge))) if plan.judge else None
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for _ in range(min(plan.concurrency, len(pending))):
            group.create_task(worker(client, judge))


def client_of(plan: ProbePlan, url: str) -> AsyncOpenAI:
    """Returns a client of an endpoint that asks each question once."""
    return AsyncOpenAI(base_url=url, api_key=key_in(plan.api_key_env) or "none", timeout=plan.timeout_s, max_retries=0)


def error_line(error: Exception) -> str:
    """Returns an error in a line; the SDK itself says no more than that there is no connection."""
    behind = f" {error.__cause__}".rstrip() if isinstance(error, APIConnectionError) and error.__cause__ else ""
    return f"{type(error).__name__}: {error}{behind}"[:300]


def key_in(variable: str | None) -> str | None:
    """Returns the API key that an environment variable holds; None if none is named.

    Raises:
        ConfigError: It is not set.
    """
    if variable is None:
        return None
    if variable not in os.environ:
        raise ConfigError(f"the environment variable {variable} is not set")
    return os.environ[variable]


def _place(cell: Cell, number: int) -> dict[str, int]:
    return {"data_index": cell.data_index(number)} if isinstance(cell, RequestSet) else {}


async def _trial(client: AsyncOpenAI, judge: AsyncOpenAI | None, request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    trace = Trace()
    try:
        answer, headers = await answered(client, request, trace)
    except (OpenAIError, httpx.HTTPError) as error:  # the SDK wraps errors before the response, not within it
        refused = getattr(error, "code", None) == REFUSED
        return {"outcome": REFUSED if refused else "error", "detail": error_line(error)}
    seconds = round(time.monotonic() - started, 3)
    if not request["stream"]:
        trace.add(answer)
    checked = check(request, answer)
    return {
        **checked,
        "pool": headers.get("x-specgate-pool"),
        "speculative": headers.get("x-specgate-speculative"),
        "seconds": seconds,
        **(await _blamed(judge, request, trace) if judge and checked["outcome"] not in BLAMELESS else {}),
    }


async def answered(client: AsyncOpenAI, request: dict[str, Any], trace: Trace) -> tuple[dict[str, Any], httpx.Headers]:
    """Returns a whole answer, streamed or not, and the response's headers.

    Args:
        client: Of the endpoint.
        request: The body.
        trace: Gets the tokens of a streamed answer.

    Raises:
        OpenAIError: There is no answer.
        httpx.HTTPError: It broke off.
    """
    fields = {name: request[name] for name in _OF_THE_SDK}
    extra = {name: value for name, value in request.items() if name not in _OF_THE_SDK}
    raw = await client.chat.completions.with_raw_response.create(**fields, extra_body=extra)
    parsed: Any = raw.parse()
    return (await _folded(parsed, trace) if request["stream"] else parsed.model_dump()), raw.headers


async def _blamed(judge: AsyncOpenAI, request: dict[str, Any], trace: Trace) -> dict[str, Any]:
    """Returns who broke an answer, and its tokens for whoever wants to look."""
    tokens = {"trace": asdict(trace)}
    if not trace.complete:
        return {"cause": "unknown", "why": "the engine did not report every token", **tokens}
    try:
        scores = await _scores(judge, request["model"], trace)
    except OpenAIError as error:
        return {"cause": "unknown", "why": f"{type(error).__name__}: {error}"[:300], **tokens}
    return {**cause(request, trace, scores), **tokens, "scores": scores}


async def _scores(judge: AsyncOpenAI, model: str, trace: Trace) -> list[float]:
    """Returns what the judge gives each token of an answer.

    Raises:
        OpenAIError: The judge does not answer, or not with log-probabilities.
    """
    scored = await judge.completions.create(
        model=model, prompt=[*trace.prompt, *trace.ids], max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    entries = (scored.model_dump()["choices"][0].get("prompt_logprobs") or [])[len(trace.prompt) :]
    if len(entries) != len(trace.ids):
        raise OpenAIError("the judge reports no prompt_logprobs")
    return [entry[str(token)]["logprob"] for token, entry in zip(trace.ids, entries, strict=True)]


async def _folded(stream: AsyncIterable[Any], trace: Trace) -> dict[str, Any]:
    """Returns the whole answer that a client would put together from a stream; its tokens go into the trace."""
    deltas = []
    reason = usage = None
    async for chunk in stream:
        part = chunk.model_dump()
        trace.add(part)
        usage = part.get("usage") or usage
        for choice in part.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            deltas.append(choice.get("delta") or {})
    message = {"role": "assistant", "content": None, **fold_deltas(deltas)}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
