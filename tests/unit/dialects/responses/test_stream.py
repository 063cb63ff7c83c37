"""Streams: the SDK's accumulator reads them, one terminal, nothing `done` that is not whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chat_chunks import ChatAnswer, streams
from support.responses_api import (
    IDENTITY,
    WEATHER,
    call_delta,
    chat,
    chunk,
    encoded,
    encoder,
    events_in,
    final,
    output_after,
    whole,
)

from serve.dialects.failure import Failure
from serve.dialects.responses.request import decode
from serve.dialects.responses.response import ResponseObject
from serve.dialects.responses.stream import ResponsesEncoder
from serve.errors import EngineError, IntegrityError

SEALED = {"include": ["reasoning.encrypted_content"]}
PATCH = {"type": "custom", "name": "apply_patch"}
SPAWN = {"type": "namespace", "name": "agents", "tools": [{**WEATHER, "name": "spawn"}]}
TOOLS = [WEATHER, PATCH, SPAWN]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
USAGE_CHUNK = {"choices": [], "usage": USAGE}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def stripped(response: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on the clock."""
    return {name: value for name, value in response.items() if name != "created_at"}


class TestOrder:
    def test_a_message_has_every_event_once(self) -> None:
        events = encoded([chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop")])
        assert kinds(events) == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]

    def test_reasoning_comes_as_text_or_as_the_summary_that_was_asked_for(self) -> None:
        chunks = [chunk({"reasoning": "hm"}), chunk({"reasoning_content": "!"}), chunk({"content": "x"}, "stop")]
        assert kinds(encoded(chunks))[2:8] == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
        ]
        events = encoded(chunks, reasoning={"summary": "auto"})
        assert kinds(events)[2:8] == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ]
        assert final(events)["output"][0]["summary"] == [{"type": "summary_text", "text": "hm!"}]

    def test_a_call_comes_whole_in_the_shape_of_the_clients_tool(self) -> None:
        chunks = [
            chunk(call_delta(0, '{"input":"a\\nb"}', "c0", "apply_patch")),
            chunk(call_delta(1, "", "c1", "agents__spawn")),
            chunk(call_delta(1, '{"city":"Oslo"}'), "tool_calls"),
        ]
        events = encoded(chunks, tools=TOOLS)
        custom, function = final(events)["output"]
        assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "apply_patch", "a\nb")
        named = [function[key] for key in ("type", "call_id", "name", "namespace", "arguments")]
        assert named == ["function_call", "c1", "spawn", "agents", '{"city":"Oslo"}']
        assert "custom_tool_call_input.delta" in kinds(events)
        assert "function_call_arguments.done" in kinds(events)

    @pytest.mark.parametrize(
        ("tool", "arguments", "item"),
        [
            (
                {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
                {"query": "calendar"},
                {"type": "tool_search_call", "execution": "client", "arguments": {"query": "calendar"}},
            ),
            (
                {"type": "shell", "environment": {"type": "local"}},
                {"commands": ["ls", "pwd"], "timeout_ms": 5},
                {
                    "type": "shell_call",
                    "action": {"commands": ["ls", "pwd"], "timeout_ms": 5, "max_output_length": None},
                },
            ),
            (
                {"type": "local_shell"},
                {"command": ["ls"]},
                {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
            ),
            (
                {"type": "apply_patch"},
                {"type": "create_file", "path": "a.txt", "diff": "+x"},
                {
                    "type": "apply_patch_call",
                    "operation": {"type": "create_file", "path": "a.txt", "diff": "+x"},
                },
            ),
            (
                {"type": "computer"},
                {"actions": [{"type": "move", "x": 3, "y": 4}, {"type": "keypress", "keys": ["CTRL", "c"]}]},
                {
                    "type": "computer_call",
                    "pending_safety_checks": [],
                    "actions": [{"type": "move", "x": 3, "y": 4}, {"type": "keypress", "keys": ["CTRL", "c"]}],
                },
            ),
            (
                {"type": "computer_use_preview", "environment": "browser", "display_width": 9, "display_height": 8},
                {"action": {"type": "screenshot"}},
                {"type": "computer_call", "pending_safety_checks": [], "action": {"type": "screenshot"}},
            ),
        ],
    )
    def test_a_call_of_a_tool_that_the_client_runs_is_an_item_of_its_own_and_comes_back_as_it_was(
        self, tool: dict[str, Any], arguments: dict[str, Any], item: dict[str, Any]
    ) -> None:
        text = json.dumps(arguments, separators=(",", ":"))
        chunks = [chunk(call_delta(0, "", "c0", tool["type"])), chunk(call_delta(0, text[:5]))]
        events = encoded([*chunks, chunk(call_delta(0, text[5:]), "tool_calls")], tools=[tool, WEATHER])
        (made,) = final(events)["output"]
        assert {**item, "call_id": "c0", "status": "completed"} == {k: v for k, v in made.items() if k != "id"}
        assert kinds(events)[2:] == ["output_item.added", "output_item.done", "completed"]
        assert events[2]["item"] == {**made, "status": "in_progress"}
        assert whole(call_delta(0, text, "c0", tool["type"]), tools=[tool])["output"] == [made]
        result = {"type": f"{made['type']}_output", "call_id": "c0", "output": "done"}
        turn = chat([{"role": "user", "content": "x"}, made, result], tools=[tool])["messages"][1]
        assert turn["tool_calls"][0]["function"] == {"name": tool["type"], "arguments": text}

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("shell", '{"commands":"ls"}'),
            ("apply_patch", '{"type":"update_file","path":"a"}'),
            ("computer", '{"actions":[{"type":"click","x":1,"y":2}]}'),
        ],
    )
    def test_a_call_that_its_client_could_not_read_is_an_error(self, name: str, arguments: str) -> None:
        stream = encoder(tools=[{"type": name}])
        stream.feed(chunk(call_delta(0, arguments, "c0", name), "tool_calls"))
        with pytest.raises(EngineError, match=name):
            stream.finish()

    def test_interleaved_calls_and_a_name_after_its_id_lose_nothing(self) -> None:
        chunks = [
            chunk(call_delta(0, '{"city"', "c0")),
            chunk(call_delta(1, '{"city":"B"}', "c1", "get_weather")),
            chunk({**call_delta(0, ':"A"}', None, "get_weather"), "content": "text"}),
            chunk({}, "tool_calls"),
        ]
        message, *calls = final(encoded(chunks, tools=TOOLS))["output"]
        assert message["content"][0]["text"] == "text"
        assert [json.loads(call["arguments"])["city"] for call in calls] == ["A", "B"]

    def test_a_keep_alive_is_an_event_that_clients_count_and_accumulators_ignore(self) -> None:
        stream = encoder()
        data = stream.start() + stream.keep_alive() + stream.feed(chunk({"content": "Hi"})) + stream.keep_alive()
        events = events_in(data + stream.feed(chunk({}, "stop")) + stream.finish())
        assert kinds(events).count("in_progress") == 3
        assert final(events)["output"][0]["content"][0]["text"] == "Hi"

    def test_json_that_a_client_spread_over_lines_does_not_break_the_events(self) -> None:
        request = {"model": "m", "input": "x", "tools": [WEATHER], "metadata": {"a": "b"}}
        memo = decode(json.dumps(request, indent=1).encode()).memo
        (created, _) = events_in(ResponsesEncoder(ResponseObject(memo, IDENTITY, 1)).start())
        assert created["response"]["tools"] == [WEATHER]


class TestEnd:
    def test_an_answer_without_text_or_call_has_an_empty_message(self) -> None:
        for chunks in ([chunk({}, "stop")], [chunk({"reasoning": "hm"}), chunk({}, "stop")]):
            response = final(encoded(chunks))
            assert response["output"][-1]["content"][0]["text"] == ""
            assert response["status"] == "completed"

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("length", "max_output_tokens"),
            ("MAX_TOKENS", "max_output_tokens"),
            ("content_filter", "content_filter"),
        ],
    )
    def test_a_cut_answer_is_incomplete(self, finish: str, reason: str) -> None:
        events = encoded([chunk({"content": "Once upon"}), chunk({}, finish)])
        response = final(events)
        assert kinds(events)[-1] == "incomplete"
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
        assert response["output"][0]["status"] == "incomplete"

    def test_a_call_that_was_cut_is_not_done_nor_anywhere_in_the_answer(self) -> None:
        chunks = [
            chunk(call_delta(0, '{"city":"A"}', "c0", "get_weather")),
            chunk(call_delta(1, '{"city":"B', "c1", "get_weather")),
            chunk({}, "length"),
        ]
        events = encoded(chunks, tools=TOOLS)
        assert [event["item"]["call_id"] for event in events if event["type"].endswith("item.done")] == ["c0"]
        assert [item["call_id"] for item in final(events)["output"]] == ["c0"]
        assert final(events)["status"] == "incomplete"

    @pytest.mark.parametrize(
        "delta", [call_delta(0, '{"city":', "c", "get_weather"), call_delta(0, '{"x":1}', "c", "apply_patch")]
    )
    def test_a_call_that_cannot_be_read_is_an_error_and_no_event(self, delta: dict[str, Any]) -> None:
        stream = encoder(tools=TOOLS)
        data = stream.start() + stream.feed(chunk(delta, "tool_calls"))
        with pytest.raises(EngineError):
            stream.finish()
        events = events_in(data + stream.fail(Failure.of_error(EngineError("broken"))))
        assert kinds(events) == ["created", "in_progress", "error", "failed"]

    def test_an_engine_that_ends_without_a_reason_has_not_completed(self) -> None:
        stream = encoder()
        stream.feed(chunk({"content": "Hi"}))
        with pytest.raises(EngineError):
            stream.finish()

    def test_a_stream_that_breaks_fails_with_the_items_that_were_complete(self) -> None:
        stream = encoder()
        data = stream.start() + stream.feed(chunk({"reasoning": "hm"})) + stream.feed(chunk({"content": "Hi"}))
        events = events_in(data + stream.fail(Failure.of_error(IntegrityError("No valid answer."))))
        response = final(events)
        assert response["error"] == {"code": "invalid_prompt", "message": "No valid answer."}
        assert [item["type"] for item in response["output"]] == ["reasoning"]
        said = {"code": "invalid_prompt", "message": "No valid answer.", "param": None}
        assert {name: events[-2][name] for name in ("type", *said)} == {"type": "error", **said}
        assert events[-2]["error"] == {"type": "invalid_request_error", **said}

    def test_usage_has_all_its_details_and_is_never_nothing(self) -> None:
        usage = final(encoded([chunk({"content": "x"}, "stop"), USAGE_CHUNK]))["usage"]
        assert usage == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        }
        estimate = final(encoded([chunk({"content": "x"}, "stop")]))["usage"]
        assert min(estimate["input_tokens"], estimate["output_tokens"]) > 0

    def test_the_guards_mark_is_kept(self) -> None:
        assert final(encoded([chunk({"content": "x"}, "stop", specgate={"rerun": "p"})]))["specgate"] == {"rerun": "p"}


@given(streams(), st.booleans(), st.booleans(), st.integers(1, 5))
def test_a_sign_of_life_repeats_what_has_come(
    case: tuple[ChatAnswer, list[dict[str, Any]]], summary: bool, seals: bool, often: int
) -> None:
    """OpenAI's JavaScript SDK takes each `response.in_progress` for the whole state, and adds what follows to it."""
    _, chunks = case
    stream = encoder(**(SEALED if seals else {}), **({"reasoning": {"summary": "auto"}} if summary else {}))
    sent = stream.start()
    for number, each in enumerate(chunks):
        sent += stream.feed(each)
        if number % often == 0:
            sent += stream.keep_alive()
            events = events_in(sent)
            assert events[-1]["response"]["output"] == output_after(events)
    final(events_in(sent + stream.finish()))


class TestWhole:
    def test_ids_and_names_are_those_of_the_stream(self) -> None:
        response = whole({"content": "Hi", "reasoning": "hm"}, metadata={"a": "b"}, instructions="i")
        assert (response["id"], response["object"], response["model"]) == ("resp_r1", "response", "m")
        assert (response["metadata"], response["instructions"], response["store"]) == ({"a": "b"}, "i", False)
        assert [item["id"] for item in response["output"]] == ["rs_r1_0", "msg_r1_1"]

    def test_a_call_that_cannot_be_read_is_an_error(self) -> None:
        call = {"id": "c", "function": {"name": "get_weather", "arguments": "{"}}
        with pytest.raises(EngineError):
            whole({"tool_calls": [call]}, "tool_calls", tools=TOOLS)


FUNCTIONS = [("get_weather", "city"), ("apply_patch", "input"), ("agents__spawn", "city")]


@st.composite
def answers(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A chat message of the parts that an answer can have, and its finish reason."""
    texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
    message: dict[str, Any] = {}
    if draw(st.booleans()):
        message["reasoning"] = draw(texts)
    if draw(st.booleans()):
        message["content"] = draw(texts)
    calls = []
    for number in range(draw(st.integers(0, 3))):
        name, key = draw(
            st.sampled_from([("get_weather", "city"), ("apply_patch", "input"), ("agents__spawn", "city")])
        )
        arguments = json.dumps({key: draw(texts)}, ensure_ascii=draw(st.booleans()))
        calls.append({"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}})
    if calls:
        message["tool_calls"] = calls
    return message, "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
    """An answer, its reason, and chunks that stand for it: cut anywhere, merged anyhow."""
    message, finish = draw(answers())
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "content"):
        deltas += [{name: piece} for piece in pieces(draw, message.get(name, ""))]
    tail: list[dict[str, Any]] = []
    for index, call in enumerate(message.get("tool_calls", ())):
        first, *rest = pieces(draw, call["function"]["arguments"])
        tail.append(call_delta(index, first, call["id"], call["function"]["name"]))
        tail += [call_delta(index, piece) for piece in rest]
    if draw(st.booleans()):  # calls in turns; the order within each stays
        queues = [[each for each in tail if each["tool_calls"][0]["index"] == index] for index in range(3)]
        tail = []
        while any(queues):
            tail.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    merged: list[dict[str, Any]] = []
    for delta in [*deltas, *tail]:
        if merged and not (merged[-1].keys() & delta.keys()) and draw(st.booleans()):
            merged[-1] = {**merged[-1], **delta}
        elif merged and "tool_calls" in merged[-1] and "tool_calls" in delta and draw(st.booleans()):
            merged[-1] = {**merged[-1], "tool_calls": merged[-1]["tool_calls"] + delta["tool_calls"]}
        else:
            merged.append(delta)
    chunks = [chunk(delta) for delta in merged]
    if draw(st.booleans()):
        chunks[-1]["choices"][0]["finish_reason"] = finish
    else:
        chunks.append(chunk({}, finish))
    return message, finish, [*chunks, USAGE_CHUNK]


@given(streams())
def test_a_stream_cut_anywhere_is_the_whole_answer(case: tuple[dict[str, Any], str, list[dict[str, Any]]]) -> None:
    message, finish, chunks = case
    events = encoded(chunks, tools=TOOLS, **SEALED)
    streamed = final(events)
    expected = whole(message, finish, tools=TOOLS, **SEALED)
    assert stripped({**streamed, "usage": None}) == stripped({**expected, "usage": None})
    indices = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert indices == list(range(len(streamed["output"])))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == streamed["output"]


@given(answers(), st.sampled_from(["plain", "sealed", "summary"]))
def test_what_the_client_sends_back_is_the_turn_that_the_model_had(
    answer: tuple[dict[str, Any], str], kept: str
) -> None:
    message, finish = answer
    asked: dict[str, Any] = {"tools": TOOLS, **SEALED}
    asked |= {"reasoning": {"summary": "auto"}} if kept == "summary" else {}
    output = whole(message, finish, **asked)["output"]
    if kept == "sealed":  # as clients that keep nothing else of a reasoning item
        output = [{**item, "content": None} if item["type"] == "reasoning" else item for item in output]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "r"}
        for item in output
        if "call_id" in item
    ]
    found = chat([{"role": "user", "content": "hi"}, *output, *results], tools=TOOLS)["messages"]
    turn = found[1] if len(found) > 1 else {}
    assert turn.get("reasoning") == message.get("reasoning")
    assert (turn.get("content") or None) == message.get("content")
    assert [_call(each) for each in turn.get("tool_calls", ())] == [
        _call(each) for each in message.get("tool_calls", ())
    ]


def _call(call: dict[str, Any]) -> tuple[str, str, Any]:
    return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def test_an_id_that_the_model_used_in_an_earlier_turn_is_not_given_out_again() -> None:
    before = [
        {"type": "function_call", "call_id": "functions.f:0", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "functions.f:0", "output": "done"},
    ]
    delta = call_delta(0, "{}", "functions.f:0", "f")
    (item,) = final(encoded([chunk(delta), chunk({}, "tool_calls")], items=before))["output"]
    assert item["call_id"] == "call_r1_0"
    (item,) = final(encoded([chunk(delta), chunk({}, "tool_calls")]))["output"]
    assert item["call_id"] == "functions.f:0"


@pytest.mark.parametrize(
    ("fields", "sealed"),
    [
        ({}, False),
        ({"store": True}, False),
        ({"store": False}, True),
        ({"include": ["reasoning.encrypted_content"]}, True),
    ],
)
def test_reasoning_is_sealed_for_whoever_asks_and_for_those_who_have_nothing_stored(
    fields: dict[str, Any], sealed: bool
) -> None:
    """Vercel's AI SDK brings sealed reasoning back, and asks for it only of models whose names it knows."""
    (item, _) = whole({"reasoning": "hm", "content": "So."}, **fields)["output"]
    assert ("encrypted_content" in item) == sealed
    kept = {name: value for name, value in item.items() if name != "content"}
    turn = chat([{"role": "user", "content": "x"}, kept, {"role": "assistant", "content": "So."}])["messages"][1]
    assert turn.get("reasoning") == ("hm" if sealed else None)
