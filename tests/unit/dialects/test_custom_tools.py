"""Custom tools of chat completions, on their way to an engine and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.dialects.api import as_chat
from serve.dialects.custom_tools import CustomCalls, decode
from serve.errors import InvalidRequestError
from serve.stream.frame import Frame, FrameReader

PATCH = {"type": "custom", "custom": {"name": "patch"}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def stage() -> CustomCalls:
    return CustomCalls(decode(json.dumps({"model": "m", "tools": [PATCH, LOOK]}).encode())[1])


def frame(*calls: dict[str, Any], choice: int = 0) -> bytes:
    chunk = {"id": "c", "choices": [{"index": choice, "delta": {"tool_calls": calls}, "finish_reason": None}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def passed(frames: list[Frame], through: CustomCalls) -> list[Any]:
    """What a client reads of frames."""
    out = [each.encoded() for given_frame in frames for each in through.feed(given_frame)]
    return [json.loads(each.removeprefix(b"data: ")) for each in out]


@given(st.text('ab"\\\n\x1f<é☃𝄞', max_size=40), st.integers(1, 9), st.booleans())
def test_a_text_comes_through_however_its_arguments_are_cut(text: str, size: int, ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    begun = {"index": 0, "id": "1", "type": "function", "function": {"name": "patch", "arguments": ""}}
    parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    raw = frame(begun) + b"".join(frame({"index": 0, "function": {"arguments": part}}) for part in parts)
    reader = FrameReader()
    chunks = passed([*reader.feed(raw), *reader.finish()], stage())
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"]["tool_calls"]]
    assert "".join(call["custom"]["input"] for call in calls) == text
    assert calls[0] == {"index": 0, "id": "1", "type": "custom", "custom": {"name": "patch", "input": ""}}


def test_calls_of_several_answers_stay_apart() -> None:
    through = stage()
    calls = [{"index": 0, "function": {"name": name, "arguments": ""}} for name in ("patch", "look")]
    more = {"index": 0, "function": {"arguments": '{"input":"x"}'}}
    frames = [Frame(frame(call, choice=index)) for index, call in enumerate(calls)]
    frames += [Frame(frame(more, choice=index)) for index in range(2)]
    last = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in passed(frames, through)][2:]
    assert last == [{"index": 0, "custom": {"input": "x"}}, more]


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "tool_calls"}},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [{"index": 0, "delta": {"tool_calls": None, "content": "a"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "look"}}]}}]},
        {"choices": [{"index": 0, "delta": "tool_calls"}]},  # of an engine that sends anything
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": "look"}]}}]},
    ],
)
def test_everything_else_passes_as_it_is(chunk: dict[str, Any]) -> None:
    assert passed([Frame.of(chunk)], stage()) == [chunk]


@pytest.mark.parametrize("bad", [[{**PATCH, "custom": {}}], [{"type": "custom"}]])
def test_a_custom_tool_without_a_name_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no name"):
        decode(json.dumps({"model": "m", "messages": [], "tools": bad}).encode())


def test_a_decision_can_be_explained_for_a_body_with_custom_tools() -> None:
    body = json.loads(as_chat(json.dumps({"model": "m", "messages": [], "tools": [PATCH]}).encode(), "chat"))
    assert [tool["type"] for tool in body["tools"]] == ["function"]


def test_a_body_that_only_speaks_of_custom_tools_keeps_its_members() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": 'a "custom" one'}], "tool_choice": None}
    assert json.loads(as_chat(json.dumps(body).encode(), "chat")) == body
