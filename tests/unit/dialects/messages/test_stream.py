"""Chat streams to Messages streams, read by Anthropic's own SDK."""

import json
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given
from support.chat_chunks import ChatAnswer, streams

from serve.dialects.dialect import Identity
from serve.dialects.failure import Failure, Overflow
from serve.dialects.messages import MESSAGES
from serve.dialects.messages.request import MessagesMemo
from serve.dialects.messages.stream import StreamEncoder
from serve.errors import EngineError

IDENTITY = Identity("r1", "m")
THINKING = MessagesMemo(prompt_tokens=100, thinking=True)


def streamed(chunks: list[dict[str, Any]], memo: MessagesMemo = THINKING) -> bytes:
    encoder = StreamEncoder(memo, IDENTITY)
    return b"".join([encoder.start(), *map(encoder.feed, chunks), encoder.finish()])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def read_by_sdk(stream: bytes) -> anthropic.types.Message:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    with anthropic.Anthropic(api_key="none", http_client=transport) as client:
        hello: Any = [{"role": "user", "content": "hello"}]
        with client.messages.stream(model="m", max_tokens=9, messages=hello) as messages:
            return messages.get_final_message()


def texts_joined(content: list[dict[str, Any]]) -> dict[str, Any]:
    """Thinking, text and calls, whatever the order in which a stream began and left them."""
    return {
        "thinking": "".join(block["thinking"] for block in content if block["type"] == "thinking"),
        "text": "".join(block["text"] for block in content if block["type"] == "text"),
        "calls": [(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"],
    }


@given(streams())
def test_a_stream_however_it_is_cut_says_what_the_whole_answer_says(case: tuple[ChatAnswer, list[dict[str, Any]]]):
    answer, chunks = case
    message = read_by_sdk(streamed(chunks)).model_dump()
    whole = json.loads(MESSAGES.encode_whole(answer.completion(), THINKING, IDENTITY))
    assert texts_joined(message["content"]) == texts_joined(whole["content"])
    for name in ("id", "model", "role", "stop_reason", "stop_sequence"):
        assert message[name] == whole[name]
    assert {name: message["usage"][name] for name in whole["usage"]} == whole["usage"]


@given(streams())
def test_blocks_are_open_one_at_a_time_under_indices_without_a_gap_and_there_is_one_end(
    case: tuple[ChatAnswer, list[dict[str, Any]]],
):
    events = events_of(streamed(case[1]))
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert sum(event["type"] in ("message_stop", "message_start", "error") for event in events) == 2
    assert events[0]["type"] == "message_start"
    current = None
    begun = 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert (current, event["index"]) == (None, begun)
            current, begun = begun, begun + 1
        else:
            assert event["index"] == current
            if event["type"] == "content_block_stop":
                current = None
    assert current is None
    assert begun


def chunk(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]}


def call(arguments: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": arguments}}],
        **more,
    }


def test_a_call_that_the_limit_of_tokens_cut_is_left_out_and_the_whole_one_before_it_stays() -> None:
    message = read_by_sdk(streamed([chunk(call('{"a": 1}')), chunk(call('{"a": "un', 1), "length")]))
    assert message.stop_reason == "max_tokens"
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"a": 1}]


@pytest.mark.parametrize("arguments", ['{"a": "un', "[1]", "nonsense"])
def test_a_broken_call_is_never_sent_as_one(arguments: str) -> None:
    encoder = StreamEncoder(THINKING, IDENTITY)
    assert b"tool_use" not in encoder.start() + encoder.feed(chunk(call(arguments), "tool_calls"))
    with pytest.raises(EngineError):
        encoder.finish()


def test_a_stream_that_the_engine_did_not_end_has_no_end_here_either() -> None:
    encoder = StreamEncoder(THINKING, IDENTITY)
    encoder.start()
    encoder.feed(chunk({"content": "half"}))
    with pytest.raises(EngineError, match="before the answer was complete"):
        encoder.finish()


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (chunk({"content": "x"}, "stop"), "end_turn", None),
        (chunk({"content": "x"}, "stop", stop_reason="END"), "stop_sequence", "END"),
        (chunk({"content": "x"}, "stop", stop_reason=151645), "end_turn", None),
        (chunk({"content": "x"}, "length"), "max_tokens", None),
        (chunk({"content": "x"}, "model_length"), "max_tokens", None),
        (chunk({"content": "x"}, "content_filter"), "refusal", None),
        (chunk({"content": "x"}, "tool_calls"), "end_turn", None),
        (chunk(call("{}"), "stop"), "tool_use", None),
        (chunk(call(""), "tool_calls"), "tool_use", None),
    ],
)
def test_the_stop_reason_follows_from_what_was_sent(last: dict[str, Any], reason: str, sequence: str | None) -> None:
    message = read_by_sdk(streamed([last]))
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_an_answer_of_nothing_is_one_empty_text() -> None:
    message = read_by_sdk(streamed([chunk({}, "stop")]))
    assert [(block.type, block.model_dump()["text"]) for block in message.content] == [("text", "")]


def test_thinking_is_sent_to_clients_that_enabled_it_alone() -> None:
    chunks = [chunk({"reasoning": "hm"}), chunk({"content": "yes"}, "stop")]
    kinds = {
        memo: [block.type for block in read_by_sdk(streamed(chunks, memo)).content]
        for memo in (THINKING, MessagesMemo(100), MessagesMemo(100, thinking=True, omitted=True))
    }
    assert list(kinds.values()) == [["thinking", "text"], ["text"], ["thinking", "text"]]


def test_omitted_thinking_comes_back_by_its_signature() -> None:
    chunks = [chunk({"reasoning": "hm, "}), chunk({"reasoning_content": "so"}), chunk({"content": "yes"}, "stop")]
    block = read_by_sdk(streamed(chunks, MessagesMemo(100, thinking=True, omitted=True))).content[0]
    assert block.type == "thinking"
    assert block.thinking == ""
    echo = {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": [block.model_dump()]}]}
    chat = json.loads(MESSAGES.decode(json.dumps(echo).encode()).body)
    assert chat["messages"][0]["reasoning"] == "hm, so"


def test_usage_is_estimated_if_the_engine_gives_none() -> None:
    usage = read_by_sdk(streamed([chunk({"content": "x" * 40}, "stop")])).usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 10)


def test_the_prompts_tokens_are_told_when_a_stream_begins() -> None:
    """Some clients read them nowhere else; what the engine has counted comes with the end."""
    events = events_of(streamed([chunk({"content": "x"}, "stop"), {"choices": [], "usage": {"prompt_tokens": 90}}]))
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert (begun["input_tokens"], begun["output_tokens"], ended["input_tokens"]) == (100, 0, 90)


def test_the_guards_mark_is_in_the_last_delta() -> None:
    last = {**chunk({"content": "x"}, "stop"), "specgate": {"rerun": "standard"}}
    assert events_of(streamed([last]))[-2]["specgate"] == {"rerun": "standard"}


def test_a_failure_is_an_error_event_in_the_words_that_make_clients_compact_their_context() -> None:
    encoder = StreamEncoder(THINKING, IDENTITY)
    [event] = events_of(encoder.fail(Failure(400, "too long", "x", overflow=Overflow(9, 8))))
    assert event["error"] == {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}


def test_a_ping_keeps_the_stream_alive_anywhere() -> None:
    encoder = StreamEncoder(THINKING, IDENTITY)
    parts = [encoder.start(), encoder.keep_alive(), encoder.feed(chunk({"content": "a"})), encoder.keep_alive()]
    message = read_by_sdk(b"".join([*parts, encoder.feed(chunk({"content": "b"}, "stop")), encoder.finish()]))
    assert [block.model_dump()["text"] for block in message.content] == ["ab"]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"choices": None},
        {"choices": [None, "x", {}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0, "delta": {"content": 7, "tool_calls": "x", "reasoning": {}}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [None, 3]}}]},
        {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        {"usage": "much"},
    ],
)
def test_chunks_that_say_nothing_are_ignored(odd: dict[str, Any]) -> None:
    message = read_by_sdk(streamed([odd, chunk({"content": "a"}, "stop"), odd]))
    assert [block.model_dump()["text"] for block in message.content] == ["a"]
