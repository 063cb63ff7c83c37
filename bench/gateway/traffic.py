"""The benchmark's requests and their expected answers, rendered once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

MODEL = "bench"
RERUN_MODEL = "bench-rerun"
CHUNKS = 64
DONE = b"data: [DONE]\n\n"
ARGUMENTS = json.dumps({"city": "Lisbon", "note": "a" * (CHUNKS * 4)}, separators=(",", ":"))
_WORDS = [f" word{n}" for n in range(CHUNKS)]
_TOOL_CALL = "call_bench"
_HEAD = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": MODEL}


@dataclass(frozen=True)
class Shape:
    """One kind of request and the answer to it.

    Attributes:
        name: As in the table.
        body: Request body.
        text: What the answer says, or the tool call's arguments; however a gateway spells the JSON, this must arrive.
        exact: The answer's bytes as the upstream sends them, always as chat.
        streamed: Whether the answer is a stream.
        path: Where it goes.
        twin: Name of the shape that asks the same as chat, for a shape of another API.
        chunks: Frames of the answer that carry something.
    """

    name: str
    body: bytes
    text: str
    exact: bytes
    streamed: bool
    path: str = "/v1/chat/completions"
    twin: str = ""

    @property
    def chunks(self) -> int:
        return CHUNKS if self.streamed else 1


def _frame(delta: dict[str, Any], finish: str | None = None) -> bytes:
    chunk = {**_HEAD, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def text_frames() -> list[bytes]:
    """A streamed text: role, one frame a word, the end."""
    said = [_frame({"content": word}) for word in _WORDS]
    return [_frame({"role": "assistant", "content": ""}), *said, _frame({}, "stop"), DONE]


def tool_frames(broken: bool = False) -> list[bytes]:
    """A streamed tool call, its arguments in `CHUNKS` pieces; `broken` cuts the last ones off."""
    size = -(-len(ARGUMENTS) // CHUNKS)
    pieces = [ARGUMENTS[at : at + size] for at in range(0, len(ARGUMENTS), size)]
    opening = {"id": _TOOL_CALL, "type": "function", "index": 0, "function": {"name": "get_weather", "arguments": ""}}
    calls = [{"index": 0, "function": {"arguments": piece}} for piece in (pieces[:-2] if broken else pieces)]
    deltas = [{"tool_calls": [call]} for call in (opening, *calls)]
    return [_frame({"role": "assistant"}), *map(_frame, deltas), _frame({}, "tool_calls"), DONE]


def whole_text() -> bytes:
    """The answer to a request that isn't streamed."""
    message = {"role": "assistant", "content": "".join(_WORDS)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 5}
    answer = {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}
    return json.dumps(answer, separators=(",", ":")).encode()


def _tool(name: str, padding: int = 1) -> dict[str, Any]:
    properties = {
        "city": {"type": "string", "description": "A city by name. " * padding},
        "note": {"type": "string", "description": "Anything else that matters. " * padding},
    }
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "description": "Looks up.", "parameters": parameters}}


def _request(said: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": said}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 256, **more}, separators=(",", ":")).encode()


def _messages(said: str, *tools: str) -> bytes:
    """A streamed request to Anthropic's API."""
    functions = [_tool(name)["function"] for name in tools]
    offered = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
    return _request(said, tools=offered, stream=True)


def _responses(said: str, *tools: str) -> bytes:
    """A streamed request to OpenAI's Responses API."""
    offered = [{"type": "function", "strict": False, **_tool(name)["function"]} for name in tools]
    body = {"model": MODEL, "input": said, "max_output_tokens": 256, "tools": offered, "stream": True}
    return json.dumps(body, separators=(",", ":")).encode()


def _long_request(**more: Any) -> bytes:
    """An agent's request: 120,000 tokens of conversation (about 4 characters each) and 30 tools."""
    turns = [
        {"role": ("user", "assistant")[n % 2], "content": f"turn {n}: " + "the quick brown fox jumps over it " * 36}
        for n in range(400)
    ]
    tools = [_tool("get_weather"), *(_tool(f"tool_{n}", padding=8) for n in range(29))]
    body = {"model": MODEL, "messages": turns, "tools": tools, "max_tokens": 256, **more}
    return json.dumps(body, separators=(",", ":")).encode()


@cache
def shapes() -> dict[str, Shape]:
    """Every kind of request by name."""
    text, tool = b"".join(text_frames()), b"".join(tool_frames())
    said, tools = "".join(_WORDS), [_tool("get_weather"), _tool("search")]
    tool_request = _request("Weather in Lisbon?", tools=tools, stream=True)
    text_request = _request("hello", tools=[_tool("get_weather")], stream=True)
    rerun_request = tool_request.replace(f'"model":"{MODEL}"'.encode(), f'"model":"{RERUN_MODEL}"'.encode())
    made = (
        Shape("short", _request("hello"), said, whole_text(), False),
        Shape("stream", _request("hello", stream=True), said, text, True),
        Shape("paced", _request("hello slowly", stream=True), said, text, True),
        Shape("tools-text", text_request, said, text, True),
        Shape("tools", tool_request, ARGUMENTS, tool, True),
        Shape("rerun", rerun_request, ARGUMENTS, tool, True),
        Shape("messages-text", _messages("hello", "get_weather"), said, text, True, "/v1/messages", "tools-text"),
        Shape(
            "messages", _messages("Weather?", "get_weather", "search"), ARGUMENTS, tool, True, "/v1/messages", "tools"
        ),
        Shape("responses-text", _responses("hello", "get_weather"), said, text, True, "/v1/responses", "tools-text"),
        Shape(
            "responses",
            _responses("Weather?", "get_weather", "search"),
            ARGUMENTS,
            tool,
            True,
            "/v1/responses",
            "tools",
        ),
        Shape("long", _long_request(), said, whole_text(), False),
        Shape("long-stream", _long_request(stream=True), said, text, True),
    )
    return {shape.name: shape for shape in made}


def said_in(answer: bytes, streamed: bool) -> str:
    """The text and tool-call arguments of an answer, for one that is not byte for byte the upstream's."""
    if not streamed:
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    said = ""
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            said += _said_by(json.loads(line[6:]))
    return said


def _said_by(event: dict[str, Any]) -> str:
    """The text or arguments in one event, in any of the APIs."""
    match event.get("type"):
        case "content_block_delta":
            return str(event["delta"].get("text") or event["delta"].get("partial_json") or "")
        case "response.output_text.delta" | "response.function_call_arguments.delta":
            return str(event["delta"])
    said = ""
    for choice in event.get("choices", ()):
        said += choice["delta"].get("content") or ""
        said += "".join(call["function"].get("arguments") or "" for call in choice["delta"].get("tool_calls") or [])
    return said
