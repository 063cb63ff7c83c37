"""A strict client of the Responses API: what it makes of an answer, and every rule that it holds a stream to."""

import json
from typing import Any

import pytest

from lab.conform.apis.responses import read
from lab.conform.apis.turn import End, ToolCall, Turn
from lab.conform.client import Reply

Events = list[dict[str, Any]]
USAGE = {
    "input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 8,
}  # fmt: skip
MESSAGE = {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed",
           "content": [{"type": "output_text", "text": "hello"}]}  # fmt: skip
CALL = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "look_up",
        "arguments": '{"a": 1}'}  # fmt: skip


def response(status: str, output: Events, **members: Any) -> dict[str, Any]:
    same = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "error": None, "tools": []}
    usage = None if status == "in_progress" else USAGE
    choice = {"parallel_tool_calls": True, "tool_choice": "auto", "incomplete_details": None}
    return {**same, **choice, "status": status, "output": output, "usage": usage, **members}


def events() -> Events:
    """Positions: 0-1 lifecycle, 2-8 a message, 9-12 a call, 13 the end."""
    text = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
    call = {"item_id": "fc_1", "output_index": 1}
    empty, part = {**MESSAGE, "status": "in_progress", "content": []}, {"type": "output_text", "text": ""}
    begun = {**CALL, "status": "in_progress", "arguments": ""}
    given: Events = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        {"type": "response.content_part.added", **text, "part": part},
        {"type": "response.output_text.delta", **text, "delta": "he"},
        {"type": "response.output_text.delta", **text, "delta": "llo"},
        {"type": "response.output_text.done", **text, "text": "hello"},
        {"type": "response.content_part.done", **text, "part": {**part, "text": "hello"}},
        {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
        {"type": "response.output_item.added", "output_index": 1, "item": begun},
        {"type": "response.function_call_arguments.delta", **call, "delta": '{"a": 1}'},
        {"type": "response.function_call_arguments.done", **call, "arguments": '{"a": 1}'},
        {"type": "response.output_item.done", "output_index": 1, "item": CALL},
        {"type": "response.completed", "response": response("completed", [MESSAGE, CALL])},
    ]
    return numbered(given)


def numbered(given: Events) -> Events:
    return [{**event, "sequence_number": number} for number, event in enumerate(given)]


def streamed(given: Events) -> Turn:
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in given]
    return read(Reply(200, (("content-type", "text/event-stream"),), "".join(frames).encode(), True, "", 0.0))


def whole(status: int, body: Any) -> Turn:
    return read(Reply(status, (("content-type", "application/json"),), json.dumps(body).encode(), True, "", 0.0))


def changed(position: int, **members: Any) -> Events:
    given = events()
    given[position] = {**given[position], **members}
    return given


def ended(output: Events, **members: Any) -> Events:
    return changed(13, response=response("completed", output) | members)


def without(*positions: int) -> Events:
    return numbered([event for position, event in enumerate(events()) if position not in positions])


def test_a_stream_adds_up_to_an_answer() -> None:
    turn = streamed(events())
    assert turn.faults == []
    assert (turn.id, turn.text, turn.end, turn.tokens) == ("resp_1", "hello", End.COMPLETE, (5, 3))
    assert turn.calls == [ToolCall("call_1", "look_up", '{"a": 1}')]
    assert turn.echo == [MESSAGE, CALL]


def test_a_whole_answer_is_the_same() -> None:
    turn = whole(200, response("completed", [MESSAGE, CALL]))
    assert turn.faults == []
    assert turn.content == streamed(events()).content


def test_types_that_a_client_does_not_know_do_no_harm() -> None:
    given = events()
    given[4:4] = [{"type": "response.hologram"}]
    assert streamed(numbered(given)).faults == []


def test_reasoning_is_read_from_its_content_or_its_summary() -> None:
    content = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    summary = {"id": "rs_2", "type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    assert whole(200, response("completed", [content, summary])).reasoning == "hmso"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (changed(5, sequence_number=6), "sequence numbers with a gap"),
        (without(0), "response.created is not the first"),
        (numbered([events()[0], *events()]), "response.created is not the first"),
        (changed(1, response=response("in_progress", [], id="resp_2")), "in_progress under another id"),
        (changed(1, response=response("completed", [])), "of a response completed"),
        (changed(0, response={"id": "resp_1", "status": "in_progress"}), "a response without created_at"),
        (changed(9, output_index=2), "output indices with a gap"),
        (changed(9, item={**CALL, "arguments": ""}), "an item added completed"),
        (changed(4, item_id="msg_9"), "outside its item"),
        (without(3), "outside a part"),
        (changed(3, content_index=1), "parts out of order"),
        (without(7), "an item done whose part is open"),
        (changed(4, type="response.function_call_arguments.delta"), "in an item message"),
        (without(5), "output_text.done differs from its deltas"),
        (changed(8, item={**MESSAGE, "id": "msg_9"}), "whose id changes"),
        (changed(12, item={**CALL, "call_id": "call_2"}), "whose call_id changes"),
        (changed(12, item={**CALL, "arguments": '{"a": 2}'}), "differs from its deltas"),
        (changed(12, item={**CALL, "arguments": '{"a'}), "a call done with the arguments"),
        (without(9), "an item done that is not open"),
        (without(12), "while an item is open"),
        (ended([MESSAGE]), "with other items than were done"),
        (ended([MESSAGE, CALL], id="resp_2"), "completed under another id"),
        (ended([MESSAGE, CALL], status="incomplete"), "completed of a response incomplete"),
        (ended([MESSAGE, CALL], usage=None), "usage without its tokens"),
        (ended([MESSAGE, CALL], usage={**USAGE, "total_tokens": 9}), "total is no sum"),
        (ended([MESSAGE, CALL], usage={**USAGE, "input_tokens_details": None}), "input_tokens_details.cached_tokens"),
        (without(13), "no end"),
        (numbered([*events(), events()[13]]), "after the end"),
        (numbered([*events()[:5], {"type": "error", "code": "x", "message": "y"}]), "in place of response.failed"),
        (numbered([*events()[:5], {"type": "error", "error": {}}, *events()[5:]]), "after `error`"),
        (changed(4, error={"message": "x"}), "with an error in it"),
    ],
)
def test_every_rule_of_a_stream_can_be_broken(given: Events, fault: str) -> None:
    assert fault in "; ".join(streamed(given).faults)


FAILED = response("failed", [], error={"code": "server_error", "message": "died"})
ERROR = {"type": "server_error", "code": "server_error", "message": "died", "param": None}


@pytest.mark.parametrize("before", [[], [{"type": "error", "error": ERROR}], [{**ERROR, "type": "error"}]])
def test_a_stream_may_fail_in_the_middle_of_an_item(before: Events) -> None:
    turn = streamed(numbered([*events()[:5], *before, {"type": "response.failed", "response": FAILED}]))
    assert (turn.faults, turn.end, turn.message, turn.code) == ([], End.ERROR, "died", "server_error")


def test_a_call_that_was_cut_is_none_in_a_response_that_says_so() -> None:
    cut = {**CALL, "status": "incomplete", "arguments": '{"a'}
    details = {"incomplete_details": {"reason": "max_output_tokens"}}
    turn = whole(200, response("incomplete", [cut], **details))
    assert (turn.faults, turn.end, turn.calls) == ([], End.CUT, [])
    assert whole(200, response("completed", [cut])).faults == ["a call incomplete in a response that is completed"]
    broken = whole(200, response("incomplete", [{**cut, "status": "completed"}], **details))
    assert broken.faults == ["a call's arguments are '{\"a'"]


def test_a_response_does_not_say_two_things() -> None:
    cut = {**MESSAGE, "status": "incomplete"}
    assert whole(200, response("completed", [cut])).faults == ["a message incomplete in a response that is completed"]
    assert "two items with one id" in whole(200, response("completed", [MESSAGE, MESSAGE])).faults
    assert "a response incomplete for the reason 'None'" in whole(200, response("incomplete", [])).faults
    reply = whole(200, response("completed", [], error={"code": "x", "message": "y"}))
    assert reply.faults == ["a response completed with an error"]


def test_an_error_has_the_shape_of_the_api() -> None:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}
    turn = whole(400, {"error": error})
    assert (turn.faults, turn.end, turn.code) == ([], End.ERROR, "context_length_exceeded")
    assert whole(400, {"type": "error", "error": {}}).faults == [
        "an error without a message",
        "an error without a type",
    ]
