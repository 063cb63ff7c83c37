"""A scripted model behind real agents: one call of a tool that they offer, then an answer that repeats the result."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from support.engines import Engine, chunk, end, frame, start

# `cut`: calls and documents end inside a string, as speculation breaks them. `lost`: the stream ends within them.
Fault = Literal["none", "cut", "lost"]
Arguments = Mapping[str, Any]

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
CITY = "Osaka"
DOCUMENT = {"city": CITY, "days": 3}
# How to call a tool, by its name: of the tools that an agent offers the first that stands here is called.
CALLS: dict[str, Arguments] = {"get_weather": {"city": CITY}, "Trip": DOCUMENT, "json": DOCUMENT}


def scripted_model(fault: Fault = "none", calls: Mapping[str, Arguments] = CALLS) -> Engine:
    """Returns an engine that thinks, calls one tool, and once it has the result, or no tool, answers in text.

    Args:
        fault: What becomes of each call and document.
        calls: The arguments of a call, by the names of the tools that can be called.
    """

    async def handle(engine: Engine, send: Any, body: bytes) -> None:
        request = json.loads(body)
        message, finish = _message(request, fault, calls)
        if not request.get("stream"):
            await start(send)
            choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
            whole = {**chunk({}), "object": "chat.completion", "choices": [choice], "usage": USAGE}
            # Half a body stands for a connection that broke.
            encoded = json.dumps(whole).encode()
            await end(send, encoded[:-20] if fault == "lost" and finish != "stop" else encoded)
            return
        await start(send, kind="text/event-stream; charset=utf-8")
        lost = fault == "lost" and finish != "stop"
        for delta in _deltas(message, lost):
            await send({"type": "http.response.body", "body": frame(chunk(delta)), "more_body": True})
        if not lost:
            usage = {**chunk({}), "choices": [], "usage": USAGE}
            await end(send, frame(chunk({}, finish)) + frame(usage) + frame("[DONE]"))
        else:
            await end(send)

    return Engine(handle)


def _message(request: Mapping[str, Any], fault: Fault, calls: Mapping[str, Arguments]) -> tuple[dict[str, Any], str]:
    messages = request["messages"]
    if messages[-1]["role"] == "tool":
        return {"reasoning": "Now I know.", "content": f"The tool says: {messages[-1]['content']}"}, "stop"
    forced = request.get("tool_choice") not in (None, "auto", "none")
    if (request.get("response_format") or {}).get("type") == "json_schema" and not forced:
        text = json.dumps(DOCUMENT)
        return {"content": text[:-4] if fault == "cut" else text}, "stop" if fault != "lost" else "length"
    offered = {tool["function"]["name"] for tool in request.get("tools", ())}
    name = next((name for name in calls if name in offered), None)
    if name is None:
        return {"content": "I have no tool for that."}, "stop"
    text = json.dumps(calls[name])
    function = {"name": name, "arguments": text[:-4] if fault == "cut" else text}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"reasoning": "Let me look.", "tool_calls": [call]}, "tool_calls"


def _deltas(message: Mapping[str, Any], lost: bool) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for member in ("reasoning", "content"):
        text = message.get(member) or ""
        text = text[: len(text) // 2] if lost else text
        deltas += [{member: text[place : place + 7]} for place in range(0, len(text), 7)]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        head = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:5]}}
        tail = {"index": index, "function": {"arguments": arguments[5:]}}
        deltas += [{"tool_calls": [head]}, *([] if lost else [{"tool_calls": [tail]}])]
    return deltas
