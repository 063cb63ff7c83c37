"""Pieces told by a frame's bytes: the same as reading its JSON tells, for any stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core import TextDelta, lone_delta
from serve.guard.frame_template import PieceReader
from serve.sse import chunk_of, data_of, frame_of

TEXTS = st.text(max_size=5) | st.sampled_from(
    [",", '","', '":{"', "stop", "m", "\\", '"', "é", "😀", "\x00?", "}", ":"]
)


def chunk(delta: dict[str, Any], choice: int = 0, **more: Any) -> dict[str, Any]:
    said = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
    return {"id": "m", "model": "m", "choices": [said], **more}


def arguments(text: str, call: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}


DELTAS = (
    st.builds(lambda name, text: {name: text}, st.sampled_from(["content", "reasoning", "role"]), TEXTS)
    | st.builds(arguments, TEXTS, st.integers(0, 1))
    | st.builds(lambda one, two: {"content": one, "reasoning": two}, TEXTS, TEXTS)
    | st.just({})
)
CHUNKS = st.builds(
    chunk, DELTAS, st.sampled_from([0, 0, 0, 1]), usage=st.sampled_from([None, None, {"total_tokens": 1}])
)
# Runs of one kind, as engines send them, so that there is something to learn.
STREAMS = st.lists(CHUNKS | st.lists(TEXTS.map(lambda text: chunk({"content": text})), max_size=8), max_size=12).map(
    lambda runs: [each for run in runs for each in (run if isinstance(run, list) else [run])]
)


def spelt(made: dict[str, Any], ascii_only: bool) -> bytes:
    """A frame by another engine: with spaces, perhaps with every character but ASCII's as an escape."""
    return b"data: " + json.dumps(made, ensure_ascii=ascii_only).encode() + b"\n\n"


def read(frame: bytes) -> TextDelta | None:
    data = data_of(frame)
    assert data is not None
    return lone_delta(chunk_of(data))


@given(STREAMS, st.sampled_from([frame_of, lambda made: spelt(made, True), lambda made: spelt(made, False)]))
def test_what_bytes_tell_is_what_reading_tells(stream: list[dict[str, Any]], frame: Any) -> None:
    reader = PieceReader()
    for made in stream:
        sent = frame(made)
        told, known = reader.read(sent), read(sent)
        assert told in (None, known)
        if told is None:
            reader.learn(sent, made)
        else:
            assert read(reader.frame('other "text" 😀')) == told._replace(text='other "text" 😀')


@pytest.mark.parametrize("delta", [lambda text: {"content": text}, arguments])
def test_after_two_of_a_kind_a_stream_is_told_by_its_bytes(delta: Any) -> None:
    reader = PieceReader()
    for text in ("one", "two"):
        made = chunk(delta(text))
        assert reader.read(frame_of(made)) is None
        reader.learn(frame_of(made), made)
    for text in ("three", "a\n", "é", '{"a":"'):
        sent = frame_of(chunk(delta(text)))
        assert reader.read(sent) == read(sent)
    assert reader.read(frame_of(chunk(delta("")))) is None
    assert reader.read(frame_of(chunk(delta("x"), choice=1))) is None


@pytest.mark.parametrize("broken", [b'"', b'","logprobs":1,"x":"', b"\xff", b"\n", b"\\", b"\\ud83d"])
def test_what_is_no_text_in_the_place_of_one_is_not_told(broken: bytes) -> None:
    reader = PieceReader()
    for text in ("one", "two"):
        made = chunk({"content": text})
        reader.learn(frame_of(made), made)
    sent = frame_of(made).replace(b"two", broken)
    assert reader.read(sent) is None
