"""Sends cases to an endpoint and says of each answer whether it is right."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import httpx
import jsonschema
from openai import APIStatusError, AsyncOpenAI, OpenAIError

from bench.public.suites import PublicCase
from bench.public.written_calls import Call
from lab.probe.k2vv import calls_are_valid
from lab.probe.plan import ProbePlan
from lab.probe.runner import answered, client_of, error_line
from lab.probe.trace import Trace

VERDICTS = ("right", "changed", "broken", "lost", "refused", "error")
PublicVerdict = Literal["right", "changed", "broken", "lost", "refused", "error"]


class Row(NamedTuple):
    """What one arm made of one case.

    Attributes:
        verdict: `right`; `changed`: valid, and not what was to be copied; `broken`: not even valid; `lost`: neither
            calls nor document; `refused`: the endpoint says that the request is wrong (4xx); `error`: any other error.
        detail: Of what is not right.
        pool: That answered, if it is a gateway that says so.
    """

    suite: str
    case: str
    arm: str
    verdict: PublicVerdict
    detail: str
    pool: str
    seconds: float


async def play(
    arm: str, plan: ProbePlan, cases: Sequence[PublicCase], add: Callable[[Row], None] = lambda _: None
) -> list[Row]:
    """Plays cases against one endpoint, every other one streamed; returns their rows in the order of the cases.

    Args:
        arm: Name of the endpoint.
        plan: How to reach it, and how many requests at a time.
        cases: To play.
        add: Takes each row as soon as it is there.
    """
    rows: dict[int, Row] = {}
    numbers = iter(range(len(cases)))

    async def worker(client: AsyncOpenAI) -> None:
        for number in numbers:
            rows[number] = await _row(arm, plan, client, cases[number], stream=number % 2 == 1)
            add(rows[number])

    async with client_of(plan, plan.base_url) as client, asyncio.TaskGroup() as group:
        for _ in range(plan.concurrency):
            group.create_task(worker(client))
    return [rows[number] for number in range(len(cases))]


async def _row(arm: str, plan: ProbePlan, client: AsyncOpenAI, case: PublicCase, *, stream: bool) -> Row:
    began_s = time.monotonic()
    body = {**case.body, "model": plan.model, "stream": stream, "temperature": plan.temperature or 0.0}
    if plan.max_tokens is not None:
        body["max_tokens"] = plan.max_tokens
    pool = ""
    verdict: PublicVerdict
    try:
        answer, headers = await answered(client, body, Trace())
        pool = headers.get("x-specgate-pool") or ""
        verdict, detail = judged(case, answer)
        if detail and _was_cut(answer):
            detail = f"cut at its limit; {detail}"
    except (OpenAIError, httpx.HTTPError) as error:
        is_refusal = isinstance(error, APIStatusError) and 400 <= error.status_code < 500
        verdict, detail = ("refused" if is_refusal else "error"), error_line(error)
    return Row(case.suite, case.name, arm, verdict, detail, pool, round(time.monotonic() - began_s, 3))


def _was_cut(answer: Mapping[str, Any]) -> bool:
    return any(choice.get("finish_reason") == "length" for choice in answer.get("choices") or ())


def judged(case: PublicCase, answer: Mapping[str, Any]) -> tuple[PublicVerdict, str]:
    """Returns the verdict on an answer, and what is wrong with it.

    Args:
        case: That it answers.
        answer: A whole chat completion.
    """
    message = ((answer.get("choices") or [{}])[0] or {}).get("message") or {}
    if case.calls is not None:
        return _calls(case, message)
    if case.text is not None:
        return _copy(case.text, message)
    if case.document is None and case.schema is None:
        return _any_calls(case, message)
    return _text(case, message.get("content"))


def _copy(text: str, message: Mapping[str, Any]) -> tuple[PublicVerdict, str]:
    if message.get("tool_calls"):
        return "broken", "calls in place of text"
    content = message.get("content")
    if not content:
        return "lost", "no text"
    return ("right", "") if content == text else ("changed", "another text")


def _any_calls(case: PublicCase, message: Mapping[str, Any]) -> tuple[PublicVerdict, str]:
    if message.get("tool_calls"):
        return ("right", "") if calls_are_valid(case.body, message) else ("broken", "calls that are not valid")
    return ("right", "") if message.get("content") else ("lost", "neither text nor calls")


def _calls(case: PublicCase, message: Mapping[str, Any]) -> tuple[PublicVerdict, str]:
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    if not functions:
        return "lost", "no call"
    try:
        said = [(str(function.get("name")), json.loads(function.get("arguments") or "")) for function in functions]
    except (ValueError, TypeError, RecursionError) as error:
        return "broken", f"arguments: {error}"
    tools = {tool["function"]["name"] for tool in case.body["tools"]}
    if strangers := [name for name, arguments in said if name not in tools or not isinstance(arguments, dict)]:
        return "broken", f"no such call: {strangers[0][:80]}"
    wanted = [(name, _as_json(arguments)) for name, arguments in case.calls or ()]
    return ("right", "") if said == wanted else ("changed", _difference(said, wanted))


def _difference(said: Sequence[Call], wanted: Sequence[Call]) -> str:
    """Returns in which call two answers begin to differ, and how, without a word of them."""
    if len(said) != len(wanted):
        return f"{len(said)} calls in place of {len(wanted)}"
    number, ours, theirs = next((n, a, b) for n, (a, b) in enumerate(zip(said, wanted, strict=True), 1) if a != b)
    if ours[0] != theirs[0]:
        return f"call {number} is of another tool"
    return f"call {number} has {'other' if ours[1] else 'no'} arguments"


def _text(case: PublicCase, content: Any) -> tuple[PublicVerdict, str]:
    if not content:
        return "lost", "no document"
    try:
        document = json.loads(content)
    except (ValueError, TypeError, RecursionError) as error:
        return "broken", f"document: {error}"
    if case.document is not None:
        return ("right", "") if document == _as_json(case.document) else ("changed", "another document")
    try:
        jsonschema.validate(document, case.schema)
    except jsonschema.ValidationError as error:
        return "broken", f"schema: {error.message}"[:300]
    except Exception as error:  # noqa: BLE001 - what the reference can't apply, nobody can be blamed for
        return "right", f"not applied: {type(error).__name__}"
    return "right", ""


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
