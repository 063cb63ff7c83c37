"""Tool requests, a client that reads the answers, and the client's own check, independent of the guard's code."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jsonschema

Call = tuple[str, str]

PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "minLength": 3},
        "timeout_s": {"type": "integer", "minimum": 1, "maximum": 600},
        "paths": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["command", "timeout_s"],
    "additionalProperties": False,
}
NAMES = ("bash", "read", "edit")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
_VALID = jsonschema.Draft202012Validator(PARAMETERS)


@dataclass
class Answer:
    """What a client has of one answer.

    Attributes:
        first_s, first_call_s, end_s: Seconds from the request to the first bytes of the body, to the first piece of a
            tool call, to the end; None where that never came.
        tokens: Completion tokens by the answer's own usage.
    """

    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    rerun: bool = False
    tokens: int = 0
    pool: str = ""
    first_s: float | None = None
    first_call_s: float | None = None
    end_s: float = 0.0


def request(model: str, seed: int, *, stream: bool) -> dict[str, Any]:
    """A chat request that must be answered with calls; the seed makes each a different one."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "检查依赖"}],
        "tools": TOOLS,
        "tool_choice": "required",
        "seed": seed,
    }
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if stream else body


def is_broken(call: Call) -> bool:
    """Returns True if an agent could not act on the call: bad JSON, schema or name, or a character cut in two."""
    name, arguments = call
    try:
        value = json.loads(arguments)
    except ValueError:
        return True
    return name not in NAMES or not _VALID.is_valid(value) or "\ufffd" in arguments


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Answer:
    """Send a request and read the answer as a client does."""
    answer, started = Answer(), time.perf_counter()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            answer.pool = response.headers.get("x-specgate-pool", "")
            answer.rerun = "x-specgate-rerun" in response.headers
            if body.get("stream") and response.status == 200:
                await _read_stream(response, answer, started)
            else:
                _take(answer, await response.json())
    except (aiohttp.ClientError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.end_s = time.perf_counter() - started
    return answer


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer, started: float) -> None:
    done = False
    async for line in response.content:
        now = time.perf_counter() - started
        answer.first_s = now if answer.first_s is None else answer.first_s
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: "):
            continue
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        before = len(answer.calls)
        _take(answer, chunk)
        if len(answer.calls) > before and answer.first_call_s is None:
            answer.first_call_s = now
    if not done and answer.error is None:
        answer.error = "the stream ended without [DONE]"


def _take(answer: Answer, reply: dict[str, Any]) -> None:
    if "error" in reply:
        answer.error = str(reply["error"].get("message"))
    answer.tokens += (reply.get("usage") or {}).get("completion_tokens", 0)
    answer.rerun |= bool((reply.get("specgate") or {}).get("rerun"))
    for choice in reply.get("choices", ()):
        answer.finish = choice.get("finish_reason") or answer.finish
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ():
            _add(answer.calls, call)


def _add(calls: list[Call], call: dict[str, Any]) -> None:
    function, place = call.get("function") or {}, call.get("index", len(calls))
    if place == len(calls):
        calls.append(("", ""))
    name, arguments = calls[place]
    calls[place] = (name + (function.get("name") or ""), arguments + (function.get("arguments") or ""))
