"""A strict client of the Messages API: what it makes of an answer, and every rule that it holds a stream to."""

import json
from typing import Any

import pytest

from lab.conform.apis.messages import read
from lab.conform.apis.turn import End, ToolCall, Turn
from lab.conform.client import Reply

Events = list[dict[str, Any]]
STREAM = (("content-type", "text/event-stream; charset=utf-8"),)
USAGE = {"input_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0, "output_tokens": 3}
TEXT, THINKING = {"type": "text", "text": ""}, {"type": "thinking", "thinking": "", "signature": ""}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {}}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> Events:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def message(**members: Any) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": USAGE}
    return {**head, "stop_reason": None, "stop_sequence": None, **members}


def events() -> Events:
    """Positions: 0 start, 1-5 thinking, 6-9 text, 10-13 a call, 14-15 the end."""
    signed = {"type": "signature_delta", "signature": "s"}
    thought = ({"type": "thinking_delta", "thinking": "h"}, {"type": "thinking_delta", "thinking": "m"}, signed)
    cut = (
        {"type": "input_json_delta", "partial_json": '{"a": "\\'},
        {"type": "input_json_delta", "partial_json": 'n"}'},
    )
    return [
        {"type": "message_start", "message": message()},
        *block(0, THINKING, *thought),
        *block(1, TEXT, {"type": "text_delta", "text": "he"}, {"type": "text_delta", "text": "llo"}),
        *block(2, TOOL_USE, *cut),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]


def streamed(given: Events, headers: tuple[tuple[str, str], ...] = STREAM) -> Turn:
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in given]
    return read(Reply(200, headers, "".join(frames).encode(), True, "", 0.0))


def whole(status: int, body: Any) -> Turn:
    return read(Reply(status, (("content-type", "application/json"),), json.dumps(body).encode(), True, "", 0.0))


def test_a_stream_adds_up_to_an_answer() -> None:
    turn = streamed(events())
    assert turn.faults == []
    assert (turn.reasoning, turn.text, turn.end, turn.tokens) == ("hm", "hello", End.COMPLETE, (7, 3))
    assert turn.calls == [ToolCall("call_1", "look_up", '{"a": "\\n"}')]
    assert turn.echo == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hello"},
        {**TOOL_USE, "input": {"a": "\n"}},
    ]


def test_a_whole_answer_is_the_same() -> None:
    content = streamed(events()).echo
    turn = whole(200, message(content=content, stop_reason="tool_use"))
    assert turn.faults == []
    assert turn.content == streamed(events()).content
    assert turn.echo == content


def test_types_that_a_client_does_not_know_and_pings_do_no_harm() -> None:
    given = events()
    given[3:3] = [{"type": "ping"}, {"type": "hologram"}]
    assert streamed(given).faults == []


def changed(position: int, **members: Any) -> Events:
    given = events()
    given[position] = {**given[position], **members}
    return given


def without(*positions: int) -> Events:
    return [event for position, event in enumerate(events()) if position not in positions]


ERROR = {"type": "error", "error": {"type": "api_error", "message": "died"}}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (without(0), "before message_start"),
        ([events()[0], *events()], "two message_start"),
        (changed(0, message=message(id="")), "without an id"),
        (changed(0, message=message(content=[TEXT])), "with content"),
        (changed(0, message=message(usage={})), "message_start without usage"),
        (changed(6, index=2), "block 2 where 1 is due"),
        (without(5), "another is open"),
        (changed(7, index=0), "outside its block"),
        (without(6), "a delta outside its block"),
        (changed(7, delta={"type": "thinking_delta", "thinking": "x"}), "thinking_delta in a block of type text"),
        (changed(7, delta={"type": "text_delta"}), "without its text"),
        (without(4), "without a signature"),
        (without(12), "a call's arguments are"),
        (changed(10, content_block={**TOOL_USE, "id": "functions.look_up:0"}), "a call's id is"),
        (changed(10, content_block={**TOOL_USE, "input": {"a": 1}}), "starts with an input"),
        (without(13), "while a block is open"),
        (changed(14, delta={"stop_reason": "end_turn"}), "1 calls and end_turn"),
        (without(10, 11, 12, 13), "0 calls and tool_use"),
        (changed(14, delta={"stop_reason": None}), "stop_reason None"),
        (changed(14, usage={}), "usage without output_tokens"),
        (without(15), "no end"),
        ([*events(), events()[15]], "message_stop after the end"),
        ([*events(), ERROR], "error after the end"),
        ([*events()[:9], ERROR, *events()[14:]], "message_delta after the end"),
    ],
)
def test_every_rule_of_a_stream_can_be_broken(given: Events, fault: str) -> None:
    assert fault in "; ".join(streamed(given).faults)


def test_an_event_is_named_by_its_type_and_is_an_object() -> None:
    body = b'data: {"type":"ping"}\n\nevent: ping\ndata: 7\n\ndata: [DONE]\n\n'
    faults = read(Reply(200, STREAM, body, False, "", 0.0)).faults
    assert {"an event '' of type 'ping'", "an event is no JSON object", "the connection broke"} <= set(faults)
    assert "no text/event-stream" in streamed(events(), ()).faults


def test_a_stream_may_end_in_an_error() -> None:
    turn = streamed([*events()[:9], ERROR])
    assert (turn.faults, turn.end, turn.message, turn.code) == ([], End.ERROR, "died", "api_error")


def test_an_error_has_the_shape_of_the_api() -> None:
    assert whole(529, {**ERROR, "request_id": "r"}).faults == []
    assert "an error in another API's shape" in whole(500, {"error": {"message": "x", "type": "y"}}).faults
    assert "an error without a message" in whole(500, {"type": "error", "error": {"type": "api_error"}}).faults
    assert "an error without a type" in whole(500, "oops").faults


def test_a_whole_call_has_an_object_as_its_input() -> None:
    turn = whole(200, message(content=[{**TOOL_USE, "input": '{"a'}], stop_reason="tool_use"))
    assert turn.faults == ["a call whose input is no object"]
