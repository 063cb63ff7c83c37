"""Cases from public reports: a request, what engines answer to it, and what a client must have, in each of the APIs.

A case is one line of JSON in `tests/field/cases`:

- `id`, `source` (the report), `kind`, `grammar`
- `request`: a chat body without `model` and `stream`; `messages` may be the user's words, a tool the name of one of
  `TOOLS` or `{name, parameters}`; `copies` of it are numbered.
- `upstream`: the engines' answers in their order, the last one repeated: `{message}`, which is streamed in small pieces
  or given whole, or `{deltas}`, which can only be streamed; `finish`, where it is not what fits; `ends` false: the
  stream has no finish reason.
- `expected`: `end` (one of `ENDS`), `calls` as [name, arguments] (`any_order`), `text` (exact), `says` (part of an
  error's message), `pairs` ([name, arguments, result] of the calls of the request as the engine gets them).
- `apis`, `forms`: where it does not concern all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.conform.apis import messages, responses
from lab.conform.apis.turn import End, ToolCall, Turn
from lab.conform.client import Reply
from support.engines import Engine, chunk, end, frame, start
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES

Api = Literal["chat", "messages", "responses"]
Form = Literal["stream", "whole"]
Body = dict[str, Any]

CASES = Path(__file__).parents[1] / "field" / "cases"
APIS: Sequence[Api] = ("chat", "messages", "responses")
FORMS: Sequence[Form] = ("stream", "whole")
PATHS: Mapping[Api, str] = {
    "chat": "/v1/chat/completions",
    "messages": messages.MESSAGES.path,
    "responses": responses.RESPONSES.path,
}
# `served`: with the first answer. `rerun`: with the second. `good`: with either. `noticed`: as `good`, and the guard
# says what is odd about the first answer. `error`: a clear error, and no byte of a call. `refused`: by the gateway.
ENDS = frozenset({"served", "rerun", "good", "noticed", "error", "refused"})
ASKED = {"served": 1, "rerun": 2, "refused": 0}
_GRAMMARS = {"kimi_k2": ("kimi-k2", "2.6"), "qwen3_coder": ("qwen3", "3.6"), "hermes": ("qwen3", "3")}
_MARKUP = re.compile(r"</?(?:tool_call|function|parameter|think)\b|<\|")
_PIECE = 7  # characters of a delta
_USAGE = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}


def _tool(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Body:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required]}


_TEXT = {"type": "string"}
TOOLS: Mapping[str, Body] = {
    "read_file": _tool({"path": _TEXT}),
    "list_files": _tool({"path": _TEXT}),
    "write_file": _tool({"path": _TEXT, "content": _TEXT}),
    "edit_file": _tool({"path": _TEXT, "old_string": _TEXT, "new_string": _TEXT}),
    "bash": _tool({"command": _TEXT}, {"timeout": {"type": "integer"}}),
    "exec": _tool({"command": _TEXT}),
    "get_weather": _tool({"city": _TEXT}, {"unit": {"enum": ["celsius", "fahrenheit"]}}),
    "get_time": _tool({"city": _TEXT}),
    "search": _tool({}, {"query": _TEXT, "limit": {"type": "integer"}}),
    "set_todos": _tool({"todos": {"type": "array", "items": {"type": "object"}}}),
    "mcp__memory__health": _tool({}),
}


@dataclass(frozen=True)
class FieldCase:
    """One case; its attributes are the members of its line."""

    id: str
    source: str
    kind: str
    grammar: str
    request: Mapping[str, Any]
    upstream: Sequence[Mapping[str, Any]]
    expected: Mapping[str, Any]
    apis: Sequence[Api] = APIS
    forms: Sequence[Form] = field(default=FORMS)

    def runs(self) -> Iterator[tuple[Api, Form]]:
        """Yields the ways in which a client may meet it."""
        whole = all("message" in answer and answer.get("ends", True) for answer in self.upstream)
        for api in self.apis:
            yield from ((api, form) for form in self.forms if form == "stream" or whole)


def field_cases() -> list[FieldCase]:
    """Returns all cases, by file and line."""
    lines = [line for path in sorted(CASES.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    return [FieldCase(**json.loads(line)) for line in lines]


def field_config() -> Body:
    """Returns the configuration of a gateway with a model for each grammar, which `_GRAMMARS` names."""
    pools = {"speculative": {"kind": "sim", "facts": SPECULATES}, "standard": {"kind": "sim", "facts": KNOWN}}
    models = {
        grammar: {"family": family, "version": version, "grammar": grammar, "thinking": True, "pools": pools}
        for grammar, (family, version) in _GRAMMARS.items()
    }
    return {"models": models, "policy": {"advisories": NO_ADVISORIES}}


def scripted() -> tuple[Engine, list[Mapping[str, Any]]]:
    """Returns an engine, and the list of its answers: set it before each request, and clear the engine's requests."""
    script: list[Mapping[str, Any]] = []

    async def handle(engine: Engine, send: Any, body: bytes) -> None:
        answer = script[min(len(engine.requests), len(script)) - 1]
        if not json.loads(body).get("stream"):
            await start(send)
            await end(send, json.dumps(_completion(answer)).encode())
            return
        await start(send, kind="text/event-stream; charset=utf-8")
        for each in _chunks(answer):
            await send({"type": "http.response.body", "body": frame(each), "more_body": True})
        await end(send, frame("[DONE]"))

    return Engine(handle), script


def _calls(message: Mapping[str, Any]) -> list[Body]:
    """Returns the calls of a message, given as [name, arguments] or in full."""
    given = message.get("tool_calls", ())
    return [
        {"id": f"call_{at}", "type": "function", "function": dict(zip(("name", "arguments"), each, strict=True))}
        if isinstance(each, list)
        else each
        for at, each in enumerate(given)
    ]


def _finish(answer: Mapping[str, Any]) -> str:
    called = "tool_calls" in answer.get("message", {}) or any("tool_calls" in each for each in answer.get("deltas", ()))
    return str(answer.get("finish", "tool_calls" if called else "stop"))


def _completion(answer: Mapping[str, Any]) -> Body:
    message = {"role": "assistant", "content": None, **answer["message"]}
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message)
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**chunk({}), "object": "chat.completion", "choices": [choice], "usage": _USAGE}


def _chunks(answer: Mapping[str, Any]) -> Iterator[Body]:
    yield chunk({"role": "assistant", "content": ""})
    yield from map(chunk, answer["deltas"] if "deltas" in answer else _deltas(answer["message"]))
    if answer.get("ends", True):
        yield chunk({}, _finish(answer))
    yield {**chunk({}), "choices": [], "usage": _USAGE}


def _deltas(message: Mapping[str, Any]) -> Iterator[Body]:
    for name in ("reasoning", "reasoning_content", "content"):
        yield from ({name: piece} for piece in _pieces(message.get(name) or ""))
    for index, call in enumerate(_calls(message)):
        function = call["function"]
        arguments = function.get("arguments")
        opening = {key: value for key, value in function.items() if key != "arguments"}
        if not isinstance(arguments, str):
            yield {"tool_calls": [{**call, "index": index}]}
            continue
        yield {"tool_calls": [{**call, "index": index, "function": {**opening, "arguments": ""}}]}
        for piece in _pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    return (text[place : place + _PIECE] for place in range(0, len(text), _PIECE))


# The request in each API


def body_of(case: FieldCase, api: Api, form: Form) -> Body:
    """Returns the body of a case's request."""
    request = dict(case.request)
    given = request.pop("messages", "hello")
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    tools = [tool for each in request["tools"] for tool in _declared(each)]
    request |= {"model": case.grammar, "stream": form == "stream", "messages": turns, "tools": tools}
    return {"chat": _chat, "messages": _messages, "responses": _responses}[api](request)


def _declared(tool: str | Body) -> list[Body]:
    if isinstance(tool, str):
        return [{"name": tool, "parameters": TOOLS[tool]}]
    body = {key: value for key, value in tool.items() if key != "copies"}
    return [{**body, "name": f"{tool['name']}_{n}"} for n in range(tool["copies"])] if "copies" in tool else [body]


def _chat(request: Body) -> Body:
    tools = [{"type": "function", "function": each} for each in request.pop("tools")]
    return {**request, "tools": tools} if tools else request


def _messages(request: Body) -> Body:
    system = "\n".join(turn["content"] for turn in request["messages"] if turn["role"] == "system")
    body = {**request, "max_tokens": 1000, "messages": [*map(_block_turn, request["messages"])]}
    body["messages"] = [turn for turn in body["messages"] if turn["role"] != "system"]
    body["tools"] = [
        {"name": each["name"], "description": each.get("description", ""), "input_schema": each["parameters"]}
        | ({"strict": True} if each.get("strict") else {})
        for each in request["tools"]
    ]
    if body.pop("parallel_tool_calls", True) is False:
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if body.get("tool_choice") == "required":
        body["tool_choice"] = {"type": "any"}
    return body | ({"system": system} if system else {})


def _block_turn(turn: Body) -> Body:
    if turn["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
        return {"role": "user", "content": [result]}
    text = [{"type": "text", "text": turn["content"]}] if turn.get("content") else []
    uses = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _value(call)}
        for call in turn.get("tool_calls", ())
    ]
    return {"role": turn["role"], "content": [*text, *uses]}


def _value(call: Mapping[str, Any]) -> Any:
    return json.loads(call["function"]["arguments"] or "{}")


def _responses(request: Body) -> Body:
    body = {key: value for key, value in request.items() if key not in ("messages", "tools")}
    items = [item for turn in request["messages"] for item in _items(turn)]
    tools = [{"type": "function", "strict": False, **each} for each in request["tools"]]
    return {**body, "store": False, "input": items, "tools": tools}


def _items(turn: Body) -> Iterator[Body]:
    if turn["role"] == "tool":
        yield {"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]}
        return
    if turn.get("content"):
        yield {"role": turn["role"], "content": turn["content"]}
    for call in turn.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


# What the client has of it


def turn_of(api: Api, reply: Reply) -> Turn:
    """Returns an answer as a client has it."""
    if api == "chat":
        return _chat_turn(reply)
    return (messages if api == "messages" else responses).read(reply)


def _chat_turn(reply: Reply) -> Turn:
    turn = Turn()
    calls: dict[int, list[str]] = {}
    if reply.error is not None:
        turn.fail(reply.error, "code")
    for choice in reply.choices():
        said = choice.get("delta") or choice.get("message") or {}
        turn.text += said.get("content") or ""
        turn.reasoning += said.get("reasoning") or ""
        for at, entry in enumerate(said.get("tool_calls") or ()):
            call = calls.setdefault(entry.get("index", at), ["", "", ""])
            function = entry["function"]
            call[0] += entry.get("id") or ""
            call[1] += function.get("name") or ""
            call[2] += function.get("arguments") or ""
        if reason := choice.get("finish_reason"):
            turn.end = End.CUT if reason == "length" else End.COMPLETE
            turn.fault_unless((reason == "tool_calls") == bool(calls) or reason == "length", f"{len(calls)}, {reason}")
    turn.calls = [ToolCall(*calls[at]) for at in sorted(calls)]
    return turn


def faults(case: FieldCase, reply: Reply, turn: Turn, engine: Engine, noted: Sequence[str]) -> list[str]:
    """Returns how an answer falls short of what a case expects.

    Args:
        case: The case.
        reply: The response.
        turn: The answer in it.
        engine: Of all pools.
        noted: What the guard found in the first answer.
    """
    expected = case.expected
    wanted, asked = expected.get("end", "good"), len(engine.requests)
    calls = [[call.name, _decoded(call.arguments)] for call in turn.calls]
    found = [f"asked the engines {asked} times"] if ASKED.get(wanted, asked) != asked else []
    if wanted in ("error", "refused"):
        found += [] if turn.end is End.ERROR and turn.message else [f"no error, but {turn.summary()}"]
        found += [f"calls before the error: {calls}"] if calls else []
        found += [f"the error is {turn.message!r}"] if expected.get("says", "") not in turn.message else []
        return found
    if reply.status != 200 or turn.end in (End.ERROR, End.NONE):
        return [*found, f"HTTP {reply.status}, {turn.summary()}"]
    found += turn.faults
    same = (lambda each: sorted(each, key=str)) if expected.get("any_order") else list
    found += [f"calls {calls}"] if "calls" in expected and same(calls) != same(expected["calls"]) else []
    found += [f"text {turn.text!r}"] if "text" in expected and turn.text != expected["text"] else []
    if "text" not in expected and _MARKUP.search(turn.text + turn.reasoning):
        found.append(f"markup in {turn.text + turn.reasoning!r}")
    ids = [call.id for call in turn.calls]
    found += [f"ids {ids}"] if len({*ids}) != len(ids) or not all(ids) else []
    found += ["the guard noticed nothing"] if wanted == "noticed" and not noted else []
    if "pairs" in expected and (pairs := _pairs(json.loads(engine.requests[-1][1])["messages"])) != expected["pairs"]:
        found.append(f"the engine reads {pairs}")
    return found


def _pairs(turns: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Returns name, arguments and result of each call, as a template joins them: by id, among the next results."""
    pairs, seen = [], set()
    for at, turn in enumerate(turns):
        results: dict[str, list[str]] = {}
        for later in turns[at + 1 :]:
            if later["role"] != "tool":
                break
            results.setdefault(later["tool_call_id"], []).append(later["content"])
        for call in turn.get("tool_calls") or ():
            twice = call["id"] in seen
            seen.add(call["id"])
            answered = results.get(call["id"], [])
            pairs.append([call["function"]["name"], _value(call), "an id twice" if twice else "|".join(answered)])
    return pairs


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
