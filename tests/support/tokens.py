"""A gateway in front of two scripted engines that know their tokens, and what a client assembles of an answer."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from lab.conform.apis import MESSAGES, RESPONSES
from lab.conform.apis.turn import End, ToolCall, Turn
from lab.conform.client import Reply, send
from lab.scripted.engine import ScriptedEngine
from lab.scripted.tokens import PATHS, TokenModel
from serve.guard.attempt_result import AttemptResult
from serve.limits.accounts import NULL_ACCOUNTS, AnyAccounts
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool
from serve.telemetry.instruments import Telemetry
from support.guard_harness import TOOL_PARAMETERS, TOOLS, read
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES, chunks_in
from support.stack import Stack, running

QWEN_MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
KIMI_MARKERS = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", "<think>", "</think>",
)  # fmt: skip


def qwen_call(name: str, **arguments: Any) -> str:
    """A call as Qwen3-Coder writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def kimi_calls(*calls: tuple[str, Mapping[str, Any]]) -> str:
    """Calls as Kimi K2 writes them."""
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
        f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def hermes_calls(*calls: tuple[str, Mapping[str, Any]]) -> str:
    """Calls as Hermes writes them."""
    said = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in said)


@asynccontextmanager
async def resuming(
    first: TokenModel,
    second: TokenModel,
    grammar: str = "qwen3_coder",
    guard: Mapping[str, Any] | None = None,
    thinking: bool = False,
    telemetry: Telemetry | None = None,
    accounts: AnyAccounts = NULL_ACCOUNTS,
    pool: Mapping[str, Any] | None = None,
    *,
    together: bool = False,
    **more: Any,
) -> AsyncIterator[tuple[Stack, list[AttemptResult]]]:
    """A stack whose speculative pool is the first model, and whose standard pool is the second one.

    Args:
        first: Answers first.
        second: Goes on.
        grammar: Of both.
        guard: The guard's configuration.
        thinking: The models think, whatever a request says.
        telemetry: Keeps the metrics.
        accounts: Count what is used.
        pool: Further configuration of both pools.
        together: They are two addresses of one pool.
        more: Further configuration.
    """
    judged: list[AttemptResult] = []
    engines = [ScriptedEngine("m", paths=PATHS) for _ in (first, second)]
    for engine, script in zip(engines, (first, second), strict=True):
        engine.script = script
        await engine.listen()
    facts = {"speculative": SPECULATES, "standard": KNOWN}
    urls = [[engine.url] for engine in engines]
    if together:
        facts, urls = {"standard": KNOWN}, [[engine.url for engine in engines]]
    pools = {
        name: {"kind": "remote", "urls": each, "facts": facts[name], **(pool or {})}
        for name, each in zip(facts, urls, strict=True)
    }
    model = {"family": "sim", "grammar": grammar, "pools": pools, "guard": dict(guard or {}), "thinking": thinking}
    config = {
        "models": {"m": model},
        "policy": {"advisories": NO_ADVISORIES},
        "quarantine": {"reference_share": 0},
        **more,
    }
    routes = {
        ("m", name): RemotePool([Endpoint(url, None) for url in each], {})
        for name, each in zip(facts, urls, strict=True)
    }
    try:
        async with running(config, {}, routes, telemetry, judged.append, accounts) as stack:
            yield stack, judged
    finally:
        for engine in engines:
            await engine.hang_up()


def asking(said: str, **more: Any) -> dict[str, Any]:
    """A chat request with tools."""
    return {"model": "m", "messages": [{"role": "user", "content": said}], "tools": TOOLS, **more}


async def asked(url: str, api: str, said: str, **more: Any) -> Turn:
    """What a client has of an answer in its API, and how it broke the rules of that.

    Args:
        url: Of the gateway.
        api: `chat`, `messages` or `responses`.
        said: The message.
        more: Further members of the request.
    """
    parameters = {"description": "Does it.", "parameters": TOOL_PARAMETERS}
    tools: list[Any] = TOOLS
    if api == "chat":
        path, body, headers = "/v1/chat/completions", asking(said), {}
    elif api == "messages":
        path, body, headers = MESSAGES.path, dict(MESSAGES.first("m", said)), dict(MESSAGES.headers(None))
        tools = [{"name": tool["function"]["name"], "input_schema": TOOL_PARAMETERS} for tool in TOOLS]
    else:
        path, body, headers = RESPONSES.path, dict(RESPONSES.first("m", said)), dict(RESPONSES.headers(None))
        tools = [{"type": "function", "strict": False, **parameters, "name": t["function"]["name"]} for t in TOOLS]
    async with aiohttp.ClientSession() as session:
        content = json.dumps({**body, "tools": tools, **more}).encode()
        headers = {"content-type": "application/json", **headers}
        reply = await send(session, "POST", f"{url}{path}", content, headers, 30.0)
    assert b"token_ids" not in reply.body
    return _chat_turn(reply) if api == "chat" else (MESSAGES if api == "messages" else RESPONSES).read(reply)


def _chat_turn(reply: Reply) -> Turn:
    turn = Turn()
    if reply.status != 200 or reply.error is not None:
        turn.fail(reply.error, "code")
        return turn
    whole = reply.json()
    if whole is None:
        *chunks, last = chunks_in(reply.body)
        turn.fault_unless(last == "[DONE]", "no [DONE]")
        message = read(chunks)
        calls, finish = message["calls"], message["finish"]
        usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        turn.fault_unless(len(usage) <= 1, "usage twice")
    else:
        message = whole["choices"][0]["message"]
        calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
        finish, usage = [whole["choices"][0]["finish_reason"]], [whole["usage"]]
    turn.text, turn.reasoning = message.get("content") or "", message.get("reasoning") or ""
    turn.calls = [ToolCall(call["id"], call["name"], call["arguments"]) for call in calls]
    turn.fault_unless(len(finish) == 1, f"finish reasons {finish}")
    turn.end = End.CUT if finish == ["length"] else End.COMPLETE
    turn.tokens = (usage[0]["prompt_tokens"], usage[0]["completion_tokens"]) if usage else None
    turn.fault_unless(len({call.id for call in turn.calls}) == len(calls), "an id twice")
    return turn
