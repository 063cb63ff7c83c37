"""Calls that the guard sends while they grow, in the dialects: read by the SDKs, the same as held, done once judged."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guard_harness import call, calls, chunk, read, through
from support.responses_api import IDENTITY, encoder, events_in, final, output_after, translated

from serve.config.guard import GuardConfig
from serve.dialects.failure import Failure
from serve.dialects.messages.request import MessagesMemo
from serve.dialects.messages.stream import StreamEncoder
from serve.errors import IntegrityError
from serve.guard.core import Guard

WRITE: dict[str, Any] = {
    "type": "function",
    "name": "write",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "strict": False,
}
PATCH = {"type": "custom", "name": "apply_patch"}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
TOOLS = [WRITE, PATCH, SEARCH]
TEXTS = st.text('ab \\"/\n<é☃𝄞', max_size=60).map(lambda text: text * 5)
CALLS = (
    st.tuples(st.just("write"), st.fixed_dictionaries({"path": TEXTS}, optional={"content": TEXTS}))
    | st.tuples(st.just("apply_patch"), st.fixed_dictionaries({"input": TEXTS}))
    | st.tuples(st.just("tool_search"), st.fixed_dictionaries({"query": TEXTS}))
)


def chunks_of(
    said: str, made: list[tuple[str, dict[str, str]]], behind: str, *, ascii_only: bool
) -> list[dict[str, Any]]:
    """An engine's stream: text, calls, and text behind them."""
    chunks = [chunk({"role": "assistant", "content": said})]
    for index, (name, value) in enumerate(made):
        text = json.dumps(value, ensure_ascii=ascii_only)
        chunks.append(chunk(calls(call(index, name, ""))))
        for at in range(0, len(text), 3):
            chunks.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": text[at : at + 3]}}]}))
    if behind:
        chunks.append(chunk({"content": behind}))
    return [*chunks, chunk({}, "tool_calls" if made else "stop")]


def guarded(chunks: list[dict[str, Any]], *, live: bool, **settings: Any) -> list[dict[str, Any]]:
    body = json.loads(translated(tools=TOOLS).body)
    return through(Guard(GuardConfig(**settings), body, live=live), chunks)


def responses(chunks: list[dict[str, Any]], *, live: bool) -> list[dict[str, Any]]:
    stream = encoder(tools=TOOLS)
    sent = [stream.start(), *map(stream.feed, guarded(chunks, live=live)), stream.finish()]
    return events_in(b"".join(sent))


def messages(chunks: list[dict[str, Any]], *, live: bool) -> list[dict[str, Any]]:
    stream = StreamEncoder(MessagesMemo(prompt_tokens=2), IDENTITY)
    sent = [stream.start(), *map(stream.feed, guarded(chunks, live=live)), stream.finish()]
    frames = b"".join(sent).decode().split("\n\n")[:-1]
    return [json.loads(frame.partition("data: ")[2]) for frame in frames]


def blocks_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a Messages stream; one is open at a time, and all have their end."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "said": ""})
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                blocks[-1]["said"] += event["delta"].get("text", event["delta"].get("partial_json", ""))
            case "content_block_stop":
                assert is_open
                is_open = False
            case "message_delta":
                assert not is_open
    return blocks


@settings(max_examples=40)
@given(st.sampled_from(["", "I write."]), st.lists(CALLS, max_size=4), st.sampled_from(["", "Done."]), st.booleans())
def test_messages_have_the_same_blocks_live_and_held(
    said: str, made: list[tuple[str, dict[str, str]]], behind: str, ascii_only: bool
) -> None:
    chunks = chunks_of(said, made, behind, ascii_only=ascii_only)
    live, held = (blocks_in(messages(chunks, live=each)) for each in (True, False))
    assert [block for block in live if block["type"] == "tool_use"] == [
        block for block in held if block["type"] == "tool_use"
    ]
    texts = ["".join(block["said"] for block in each if block["type"] == "text") for each in (live, held)]
    assert texts[0] == texts[1]


@settings(max_examples=40)
@given(st.sampled_from(["", "I write."]), st.lists(CALLS, max_size=4), st.sampled_from(["", "Done."]), st.booleans())
def test_responses_have_the_same_items_live_and_held_and_deltas_are_what_is_done(
    said: str, made: list[tuple[str, dict[str, str]]], behind: str, ascii_only: bool
) -> None:
    chunks = chunks_of(said, made, behind, ascii_only=ascii_only)
    live, held = (responses(chunks, live=each) for each in (True, False))
    names = ("type", "call_id", "name", "arguments", "input", "status")
    items = [
        [{name: item.get(name) for name in names} for item in final(each)["output"] if "call_id" in item]
        for each in (live, held)
    ]
    assert items[0] == items[1]
    for item in final(live)["output"]:
        said_of = [event["delta"] for event in live if event.get("item_id") == item["id"] and "delta" in event]
        if item["type"] == "tool_search_call":
            assert said_of == []
        elif "call_id" in item:
            assert "".join(said_of) == item.get("arguments", item.get("input"))


@settings(max_examples=40)
@given(st.lists(CALLS, min_size=1, max_size=3), st.sampled_from(["", "Done."]))
def test_a_sign_of_life_within_a_call_repeats_what_has_come_of_it(
    made: list[tuple[str, dict[str, str]]], behind: str
) -> None:
    stream = encoder(tools=TOOLS)
    sent = stream.start()
    for each in guarded(chunks_of("I write.", made, behind, ascii_only=True), live=True):
        sent += stream.feed(each) + stream.keep_alive()
        events = events_in(sent)
        assert events[-1]["response"]["output"] == output_after(events)


@pytest.mark.parametrize("api", [messages, responses])
def test_a_long_call_comes_in_many_deltas_before_it_is_done(api: Callable[..., list[dict[str, Any]]]) -> None:
    for name, member in (("write", "path"), ("apply_patch", "input")):
        events = api(chunks_of("", [(name, {member: "line\n" * 500})], "", ascii_only=True), live=True)
        deltas = [
            event for event in events if event["type"].endswith(("delta", "input.delta")) and "stop" not in str(event)
        ]
        assert len(deltas) > 20


def test_a_call_that_the_length_cut_has_no_end_in_responses_and_the_reason_in_messages() -> None:
    chunks = [*chunks_of("", [("write", {"path": "x" * 500})], "", ascii_only=True)[:-20], chunk({}, "length")]
    events = responses(chunks, live=True)
    assert events[-1]["type"] == "response.incomplete"
    assert "response.function_call_arguments.done" not in [event["type"] for event in events]
    ended = messages(chunks, live=True)
    (block,) = blocks_in(ended)
    assert '{"path": "xxx' in block["said"]
    assert [event["delta"]["stop_reason"] for event in ended if event["type"] == "message_delta"] == ["max_tokens"]


@pytest.mark.parametrize("name", ["write", "apply_patch"])
@pytest.mark.parametrize("follows", ["text", "reasoning", "call", "text and call"])
def test_what_follows_a_call_that_the_length_cut_has_a_place_of_its_own(name: str, follows: str) -> None:
    member = {"write": "path", "apply_patch": "input"}[name]
    chunks = chunks_of("I write.", [(name, {member: "x" * 500})], "", ascii_only=True)[:-20]
    if "text" in follows:
        chunks.append(chunk({"content": "late"}))
    if follows == "reasoning":
        chunks.append(chunk({"reasoning": "late"}))
    if "call" in follows:
        chunks.append(chunk(calls(call(1, "write", '{"path": "b"}'))))
    chunks.append(chunk({}, "length"))
    events = responses(chunks, live=True)
    begun = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in final(events)["output"]] == begun
    for event in events:
        if "output_index" in event:
            assert event.get("item_id", event.get("item", {}).get("id")) == begun[event["output_index"]]
    cut = final(events)["output"][1]
    assert cut["status"] == "incomplete"
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    assert done == [each for each in begun if each != cut["id"]]
    said = "".join(event["delta"] for event in events if event.get("item_id") == cut["id"])
    assert said == (cut.get("arguments", cut.get("input")) or "")
    blocks_in(messages(chunks, live=True))


def test_a_call_whose_arguments_are_no_text_begins_when_it_is_whole() -> None:
    made = chunks_of(
        "I search.", [("write", {"path": "a"}), ("tool_search", {"query": "x" * 500})], "", ascii_only=True
    )
    cut = responses([*made[:-20], chunk({}, "length")], live=True)
    assert [item["type"] for item in final(cut)["output"]] == ["message", "function_call"]
    whole = responses(made, live=True)
    assert [item["type"] for item in final(whole)["output"]] == ["message", "function_call", "tool_search_call"]


def test_a_stream_that_fails_while_a_call_grows_has_one_terminal_and_no_done() -> None:
    chunks = chunks_of("", [("write", {"path": "x" * 500})], "", ascii_only=True)[:-20]
    sent = [each for each in guarded(chunks, live=True, reruns=0) if "error" not in each]
    assert read(sent)["calls"]
    stream = encoder(tools=TOOLS)
    events = events_in(
        b"".join([stream.start(), *map(stream.feed, sent), stream.fail(Failure.of_error(IntegrityError("broken")))])
    )
    assert events[-1]["type"] == "response.failed"
    assert "response.output_item.done" not in [event["type"] for event in events]
