"""How a relayed stream ends: seen wherever the network cuts it, and whatever the engine's habits are."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import DONE
from serve.proxy.stream_end import StreamEnd, StreamState

Habit = Callable[[bytes], bytes]

TEXTS = (b"a", b'data: {\\"error\\"', b"\\n\\n")
CONTENT = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text for text in TEXTS]
FAILED = b'data: {"error":{"message":"died"}}\n\n'
# As SSE allows: other line ends, no space, a comment.
HABITS: dict[str, Habit] = {
    "vLLM": lambda frame: frame,
    "CR LF": lambda frame: frame.replace(b"\n", b"\r\n"),
    "CR": lambda frame: frame.replace(b"\n", b"\r"),
    "no space": lambda frame: frame.replace(b"data: ", b"data:", 1),
    "comment": lambda frame: b": ping\n" + frame,
}
habits = pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(marks)]


@habits
@given(st.lists(st.sampled_from(CONTENT), max_size=4), st.lists(st.integers(0, 10_000)))
def test_a_whole_stream_passes_untouched_and_is_seen_to_be_done(
    habit: Habit, frames: list[bytes], places: list[int]
) -> None:
    stream = b"".join(map(habit, [*frames, DONE]))
    end = StreamEnd()
    assert b"".join(end.feed(part) for part in cut(stream, places)) == stream
    assert (end.done, end.failed) == (True, False)


@habits
@given(st.lists(st.sampled_from(CONTENT), max_size=4), st.lists(st.integers(0, 10_000)))
def test_nothing_follows_an_error_frame(habit: Habit, frames: list[bytes], places: list[int]) -> None:
    stream = b"".join(map(habit, [*frames, FAILED]))
    end = StreamEnd()
    sent = b"".join(end.feed(part) for part in cut(stream + habit(DONE), places))
    assert sent == stream
    assert (end.done, end.failed) == (False, True)


@habits
@given(st.lists(st.sampled_from(CONTENT), max_size=4), st.lists(st.integers(0, 10_000)))
def test_a_stream_that_just_stops_is_neither_done_nor_failed(
    habit: Habit, frames: list[bytes], places: list[int]
) -> None:
    stream = b"".join(map(habit, frames))
    end = StreamEnd()
    assert b"".join(end.feed(part) for part in cut(stream, places)) == stream
    assert not end.done
    assert not end.failed


@pytest.mark.parametrize(
    ("stream", "lacks", "done"),
    [
        (b"", b"", False),
        (b"data: {}\n\n", b"", False),
        (b"data: {}\n\ndata: [DONE]\n\n", b"", True),
        (b"data: {}\r\rdata: [DONE]\r\r", b"", True),
        (b"data: {}\n\ndata: [DONE]", b"\n\n", True),
        (b"data: {}\n\ndata: [DONE]\r\n", b"\n\n", True),
        (b'data: {"content":"data: [DONE]', b"\n\n", False),
        (b'data: {}\n\ndata: {"cho', b"\n\n", False),
        (b'data: {}\n\ndata: {"error":{"mess', b"\n\n", False),
        (b'data: {}\n\ndata: {"error":{}}\n\n', b"", False),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_last_frame_is_completed_where_the_stream_ends_and_done_needs_no_line_end(
    stream: bytes, lacks: bytes, done: bool, size: int
) -> None:
    end = StreamEnd()
    for start in range(0, len(stream), size):
        end.feed(stream[start : start + size])
    assert (end.finish(), end.done) == (lacks, done)


def test_a_done_inside_an_answer_that_breaks_off_is_no_end() -> None:
    end = StreamEnd()
    end.feed(b'data: {"choices":[{"delta":{"content":"data: [DONE]')
    assert not end.done


def test_a_stream_is_open_then_in_its_error_then_closed() -> None:
    end = StreamEnd()
    states = []
    for part in (CONTENT[0], b'data: {"err', b'or":{"message":"died"}}\n', b"\n", DONE):
        end.feed(part)
        states.append(end.state)
    assert states == [
        StreamState.OPEN, StreamState.OPEN, StreamState.IN_ERROR, StreamState.CLOSED, StreamState.CLOSED,
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("frame", [b'data: {"error": null, "choices": []}\n\n', b'data: {"error":null}\n\n'])
def test_a_frame_without_an_error_goes_on(frame: bytes, size: int) -> None:
    stream = frame + b"data: [DONE]\n\n"
    end = StreamEnd()
    sent = b"".join(end.feed(stream[start : start + size]) for start in range(0, len(stream), size))
    assert (sent, end.failed, end.done) == (stream, False, True)


def test_the_end_of_a_stream_is_watched_in_bounded_memory() -> None:
    end = StreamEnd()
    for _ in range(1_000):
        end.feed(b"x" * 100)
        assert len(end._tail) <= 32
