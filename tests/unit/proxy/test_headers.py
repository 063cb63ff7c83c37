"""Headers that pass and headers that do not, and the end of a stream, wherever the network cuts it."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError, encode_json
from serve.proxy.exchange import forwarded_headers, request_headers, response_headers
from serve.sse import DONE, StreamEnd, error_frame

Habit = Callable[[bytes], bytes]

TEXTS = (b"a", b'data: {\\"error\\"', b"\\n\\n")
CONTENT = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text for text in TEXTS]
FAILED = b'data: {"error":{"message":"died"}}\n\n'
# As SSE allows: other line ends, no space, a comment.
HABITS: dict[str, Habit] = {
    "vLLM": lambda frame: frame,
    "CR LF": lambda frame: frame.replace(b"\n", b"\r\n"),
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


def test_a_done_inside_an_answer_that_breaks_off_is_no_end() -> None:
    end = StreamEnd()
    end.feed(b'data: {"choices":[{"delta":{"content":"data: [DONE]')
    assert not end.done


def test_headers_that_the_client_names_as_its_connections_own_stay_here() -> None:
    sent = {"connection": "close, X-Hop", "x-hop": "1", "x-mine": "2"}
    assert set(forwarded_headers(sent, None)) == {"x-mine", "content-type"}


def test_only_known_private_headers_are_withheld_from_the_engine() -> None:
    sent = {"cookie": "a", "x-forwarded-host": "h", "x-specgate-pool": "p", "x-mine": "1", "te": "trailers"}
    assert forwarded_headers(sent, "key") == {
        "x-mine": "1",
        "content-type": "application/json",
        "authorization": "Bearer key",
    }


def test_the_engines_headers_pass_except_hop_by_hop_and_ours() -> None:
    sent = {"Content-Type": "a", "Retry-After": "3", "X-Specgate-Pool": "forged", "Connection": "close"}
    got = response_headers(sent)
    assert got == [(b"content-type", b"a"), (b"retry-after", b"3")]


def test_header_names_are_read_in_any_case() -> None:
    assert request_headers([(b"X-Enable-Speculative", b"true")]) == {"x-enable-speculative": "true"}


def test_an_error_frame_is_one_sse_frame_in_openais_shape() -> None:
    assert error_frame(EngineError("gone")) == (
        b'data: {"error":{"message":"gone","type":"upstream_error","param":null,"code":"engine_error"}}\n\n'
    )


def test_json_is_compact_and_keeps_characters() -> None:
    assert encode_json({"a": "你"}) == '{"a":"你"}'.encode()
