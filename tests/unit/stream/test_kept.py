"""The bytes of a stream that are kept say what went out, however they came and however many there are."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serve.guard.plain_answer import PlainAnswer
from serve.http1.sse import encode_frame
from serve.stream.kept import Kept
from serve.stream.line import Line
from serve.stream.stages import End

TEXTS = st.sampled_from(["a", " b", '"', "\\", "好", "🙂", "\n", "{", 'x","y'])
PIECES = st.tuples(st.sampled_from(["content", "reasoning", "text"]), st.lists(TEXTS, min_size=1, max_size=40))


def chunk(field: str, text: str) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    choice |= {"text": text} if field == "text" else {"delta": {field: text}}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def through(frames: list[bytes], kept: Kept, joins: int) -> bytes:
    """What a client gets of frames that come so many at once."""
    line = Line((End(waits=True),), kept)
    out: list[bytes] = []
    take = line.sink(out.append, lambda data: out.append(line.feed(data)))
    for start in range(0, len(frames), joins):
        take(b"".join(frames[start : start + joins]))
    return b"".join(out)


@given(runs=st.lists(PIECES, max_size=6), repeats=st.integers(1, 30), joins=st.integers(1, 3))
def test_what_went_out_can_be_read(runs: list[tuple[str, list[str]]], repeats: int, joins: int) -> None:
    frames = [chunk(field, text) for field, texts in runs for text in texts * repeats]
    kept = Kept()
    assert through(frames, kept, joins) == b"".join(frames)
    answer = PlainAnswer()
    answer.read(kept.parts)
    said = {"content": "", "reasoning": ""}
    for field, texts in runs:
        said["content" if field == "text" else field] += "".join(texts * repeats)
    assert (answer.had.content, answer.had.reasoning) == (said["content"], said["reasoning"])


def test_a_long_stream_shrinks_to_its_text() -> None:
    for line_ends in (b"\n\n", b"\r\n\r\n"):  # the latter is read frame by frame
        kept = Kept()
        through([chunk("content", f" {n}").replace(b"\n\n", line_ends) for n in range(5000)], kept, 1)
        answer = PlainAnswer()
        answer.read(kept.parts)
        assert answer.had.content == "".join([f" {n}" for n in range(5000)])
        assert line_ends != b"\n\n" or sum(map(len, kept.parts)) < 100_000


def test_of_a_stream_that_is_too_long_nothing_is_kept() -> None:
    kept = Kept(limit_bytes=10_000)
    through([chunk("content", "x" * 50) for _ in range(5000)], kept, 1)
    assert kept.lost
    assert len(kept.parts) <= 512


def test_what_came_after_an_engine_gave_up_did_not_go_out() -> None:
    gives_up = encode_frame({"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "abort"}]})
    answer = PlainAnswer()
    answer.read([chunk("content", "a"), gives_up, chunk("content", "b")])
    assert (answer.had.content, answer.finished) == ("a", False)
