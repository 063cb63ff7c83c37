"""An engine's raw text becomes reasoning, content and calls: streamed as whole, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.deltas import fold_deltas
from serve.parsing import StreamParser
from serve.stream.line import Line
from serve.stream.parsed import Parsed

TOOLS = [
    {
        "name": "write_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
            "required": ["path"],
        },
    }
]
ARGUMENTS = {"path": "a.py", "lines": 2}
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>"
    '{"path": "a.py", "lines": 2}<|tool_call_end|><|tool_calls_section_end|>'
)
QWEN = (
    "<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=lines>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
HERMES = '<tool_call>\n{"name": "write_file", "arguments": {"path": "a.py", "lines": 2}}\n</tool_call>'
CALLS = {"kimi_k2": KIMI, "qwen3_coder": QWEN, "hermes": HERMES}


def stage(grammar: str, *, thinking: bool = False, reports: bool = False) -> Parsed:
    return Parsed(lambda: StreamParser(grammar, TOOLS, thinking), grammar, reports=reports)


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def streamed(read: Parsed, pieces: list[str], reason: str = "stop") -> tuple[dict[str, Any], Any]:
    line = Line([read])
    frames = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": each}) for each in pieces)]
    out = b"".join(map(line.feed, [*frames, chunk({}, reason), b"data: [DONE]\n\n"])) + line.finish()
    *chunks, done = [each.removeprefix(b"data: ") for each in out.split(b"\n\n") if each]
    assert done == b"[DONE]"
    choices = [json.loads(each)["choices"][0] for each in chunks]
    assert choices[-1]["finish_reason"] is not None
    return fold_deltas(choice["delta"] for choice in choices), choices[-1]["finish_reason"]


def whole(read: Parsed, text: str) -> tuple[dict[str, Any], Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    (choice,) = json.loads(read.whole(json.dumps({"id": "c", "choices": [choice]}).encode()))["choices"]
    return {name: value for name, value in choice["message"].items() if value and name != "role"}, choice[
        "finish_reason"
    ]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
@pytest.mark.parametrize("grammar", CALLS)
def test_a_call_in_raw_text_is_a_call_and_ends_the_choice_as_one(grammar: str, size: int) -> None:
    text = f"Hm.</think>I write.{CALLS[grammar]}"
    expected = {"reasoning": "Hm.", "content": "I write.", "tool_calls": [("write_file", ARGUMENTS)]}
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    for message, reason in (
        streamed(stage(grammar, thinking=True), pieces),
        whole(stage(grammar, thinking=True), text),
    ):
        assert without_ids(message) == expected
        assert reason == "tool_calls"
        assert message["tool_calls"][0]["id"].startswith("functions." if grammar == "kimi_k2" else "call_")


def test_prose_passes_as_the_engines_own_bytes() -> None:
    line = Line([stage("hermes")])
    for text in ("Hello", " world", " and", " more"):
        assert line.feed(chunk({"content": text})) == chunk({"content": text})
    assert line.feed(chunk({}, "stop")) == chunk({}, "stop")


def test_choices_are_parsed_apart_and_what_is_no_text_passes() -> None:
    line = Line([stage("hermes")])
    usage = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1}}\n\n'
    error = b'data: {"error":{"message":"no"}}\n\n'
    out = line.feed(chunk({"content": "<tool"})) + line.feed(chunk({"content": "<b>"}, index=1))
    out += line.feed(chunk({}, "stop")) + line.feed(chunk({}, "length", index=1))
    assert line.feed(usage) == usage
    assert line.feed(error) == error
    assert line.feed(b": ping\n\n") == b": ping\n\n"
    deltas: dict[int, str] = {0: "", 1: ""}
    for each in out.split(b"\n\n")[:-1]:
        (choice,) = json.loads(each.removeprefix(b"data: "))["choices"]
        deltas[choice["index"]] += choice["delta"].get("content", "")
    assert deltas == {0: "<tool", 1: "<b>"}


def test_a_call_that_a_limit_cut_ends_the_choice_as_the_engine_says() -> None:
    message, reason = streamed(stage("hermes"), [HERMES[:60]], "length")
    assert reason == "length"
    assert message["tool_calls"][0]["function"]["name"] == "write_file"


DEEP = b'{"choices": ' + 100_000 * b"[" + 100_000 * b"]" + b"}"


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"error": {}}', b'{"choices": [1, {"message": null}]}', DEEP])
def test_a_body_of_another_shape_passes(body: bytes) -> None:
    read = stage("hermes").whole(body)
    assert read == body or json.loads(read) == json.loads(body)


def test_text_that_meant_a_call_and_yielded_none_is_shown_to_a_guard_alone() -> None:
    text = "Look.<tool_call>\n</tool_call>"
    assert whole(stage("hermes"), text)[0]["content"] == "Look."
    assert "<tool_call>" in whole(stage("hermes", reports=True), text)[0]["content"]


@given(
    grammar=st.sampled_from(sorted(CALLS)),
    parts=st.lists(st.sampled_from([*CALLS.values(), "I write. ", "\n", "<", "</think>", "é", "{"]), max_size=5),
    data=st.data(),
)
def test_a_stream_adds_up_to_the_whole_answer(grammar: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[one:two] for one, two in zip([0, *places], [*places, len(text)], strict=True) if one < two]
    message, reason = streamed(stage(grammar), pieces)
    expected, expected_reason = whole(stage(grammar), text)

    def plain(found: dict[str, Any]) -> dict[str, Any]:
        calls = [{**call, "id": ""} for call in found.get("tool_calls", ())]
        return {**{name: text for name, text in found.items() if text}, "tool_calls": calls}

    assert plain(message) == plain(expected)
    assert reason == expected_reason
