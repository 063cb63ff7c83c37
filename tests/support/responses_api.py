"""Responses requests and streams for tests: bodies in, chat bodies out; chunks in, events and SDK snapshots out."""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

from openai._models import construct_type_unchecked
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from serve.dialects.dialect import Identity, Translated
from serve.dialects.responses import RESPONSES
from serve.dialects.responses.request import decode
from serve.dialects.responses.response import ResponseObject
from serve.dialects.responses.stream import ResponsesEncoder

IDENTITY = Identity("r1", "m")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def translated(items: Any = "hello", **fields: Any) -> Translated:
    """A request with this input, decoded."""
    return decode(json.dumps({"model": "m", "input": items, **fields}).encode())


def chat(items: Any = "hello", **fields: Any) -> dict[str, Any]:
    """The chat body that a request stands for."""
    body: dict[str, Any] = json.loads(translated(items, **fields).body)
    return body


def encoder(**fields: Any) -> ResponsesEncoder:
    """The encoder of a request's stream, at a fixed time."""
    return ResponsesEncoder(ResponseObject(translated(**fields).memo, IDENTITY, 1))


def whole(message: Mapping[str, Any], finish: str = "stop", **fields: Any) -> dict[str, Any]:
    """The response object for a whole chat message."""
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    response: dict[str, Any] = json.loads(RESPONSES.encode_whole(completion, translated(**fields).memo, IDENTITY))
    return response


def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call_delta(index: int, arguments: str, identity: str | None = None, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function} | ({"id": identity} if identity else {})]}


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose frames, names and sequence numbers must be right."""
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    events = []
    for number, frame in enumerate(frames):
        head, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def encoded(chunks: Iterable[Mapping[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The events of a complete stream."""
    stream = encoder(**fields)
    return events_in(stream.start() + b"".join(map(stream.feed, chunks)) + stream.finish())


def output_after(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the events of items and deltas tell, without those of the whole response."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind, place = event["type"], event.get("output_index")
        item = {} if place is None or kind == "response.output_item.added" else output[place]
        if kind == "response.output_item.added":
            output.append(deepcopy(event["item"]))
        elif kind == "response.output_item.done":
            output[event["output_index"]] = event["item"]
        elif kind.endswith("part.added"):
            item["summary" if "summary_index" in event else "content"].append(event["part"])
        elif kind.endswith(("text.delta", "refusal.delta")):
            item["summary" if "summary_index" in event else "content"][-1]["text"] += event["delta"]
        elif kind.endswith(".delta"):
            item["input" if "input" in item else "arguments"] += event["delta"]
    return output


def final(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of the one terminal event, read by the SDK's own accumulator on the way."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        typed: Any = construct_type_unchecked(type_=cast(Any, ResponseStreamEvent), value=event)
        state.handle_event(typed)
    terminal = [event for event in events if event["type"].rpartition(".")[2] in ("completed", "incomplete", "failed")]
    assert terminal == [events[-1]]
    response: dict[str, Any] = terminal[0]["response"]
    return response
