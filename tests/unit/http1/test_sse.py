"""Frames: the same wherever the network cuts them, and any that SSE allows."""

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError
from serve.http1.sse import (
    FrameReader,
    decode_chunk,
    encode_frame,
    error_frame,
    frame_data,
    is_comment,
    is_done,
)

FRAMES = st.lists(
    st.dictionaries(st.text(max_size=4), st.text(max_size=12), max_size=3).map(encode_frame) | st.just(b": ping\n\n"),
    max_size=8,
)


@given(FRAMES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans(), st.data())
def test_frames_are_the_same_however_they_are_cut(
    frames: list[bytes], line_end: bytes, marked: bool, data: st.DataObject
) -> None:
    whole = b"\xef\xbb\xbf" * marked + b"".join(frames)
    sent = whole.replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    reader = FrameReader()
    pieces = [sent[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert [frame for piece in [*pieces, b":"] for frame in reader.feed(piece)] == frames


def test_a_byte_order_mark_counts_at_the_beginning_only() -> None:
    reader = FrameReader()
    assert reader.feed(b"\xef\xbb\xbfdata: 1\n\n") == [b"data: 1\n\n"]
    (later,) = reader.feed(b"\xef\xbb\xbfdata: 2\n\n")
    assert frame_data(later) is None


@pytest.mark.parametrize("frame", [b": ping\n\n", b":\n: x\n\n", b"\n\n"])
def test_comments_are_known(frame: bytes) -> None:
    assert is_comment(frame)


@pytest.mark.parametrize("frame", [b"data\n\n", b"event: x\n\n", b": x\nid: 1\n\n", b" data: 1\n\n"])
def test_other_lines_are_no_comments(frame: bytes) -> None:
    assert not is_comment(frame)


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (b'data: {"a":1}\n\n', b'{"a":1}'),
        (b'data:{"a":1}\n\n', b'{"a":1}'),
        (b'event: x\nid: 1\ndata: {"a":\ndata: 1}\n\n', b'{"a":\n1}'),
        (b": ping\n\n", None),
        (b"data: [DONE]\n\n", b"[DONE]"),
    ],
)
def test_data_is_what_the_data_lines_say(frame: bytes, data: bytes | None) -> None:
    assert frame_data(frame) == data


def test_only_done_ends() -> None:
    assert is_done(b"[DONE]")
    assert not is_done(b'{"content":"[DONE]"}')


@given(
    st.dictionaries(
        st.text(max_size=4), st.text(max_size=12) | st.floats(allow_nan=False, allow_infinity=False) | st.none()
    )
)
def test_a_chunk_survives_the_way_to_bytes_and_back(chunk: dict[str, object]) -> None:
    data = frame_data(encode_frame(chunk))
    assert data is not None
    assert decode_chunk(data) == json.loads(data) == chunk


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'"x"', b'{"a":"\\ud83d"}', b'{"a":' + b"[" * 100_000])
def test_what_is_no_chunk_is_the_engines_fault(data: bytes) -> None:
    with pytest.raises(EngineError):
        decode_chunk(data)


def test_an_error_frame_is_one_sse_frame_in_openais_shape() -> None:
    assert error_frame(EngineError("gone")) == (
        b'data: {"error":{"message":"gone","type":"upstream_error","param":null,"code":"engine_error"}}\n\n'
    )


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_long_frame_in_tiny_pieces_takes_linear_work_and_memory(line_end: bytes) -> None:
    class Counting(FrameReader):
        cuts = 0

        def _cut(self) -> list[bytes]:
            self.cuts += 1
            return super()._cut()

    reader = Counting()
    lines = line_end.join([b"data: x"] * 4_000)
    frames = [frame for byte in lines + 2 * line_end for frame in reader.feed(bytes([byte]))]
    assert frames == [lines.replace(b"\r", b"") + b"\n\n"]
    assert reader.cuts == 1, "what came before is looked at only once the frame is complete"


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("ends", [True, False])
def test_a_frame_that_is_too_long_is_the_engines_fault_however_it_is_cut(size: int, ends: bool) -> None:
    reader = FrameReader(limit_bytes=1_000)
    stream = b"data: {}\n\n" * 500 + b"data: " + b"x" * 1_000 + b"\n\n" * ends
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    with pytest.raises(EngineError, match="more than 1000 bytes"):
        list(map(reader.feed, pieces))


@given(st.integers(1, 40), st.booleans(), st.integers(1, 7))
def test_frames_up_to_the_limit_pass(length: int, crlf: bool, size: int) -> None:
    line_end = b"\r\n" if crlf else b"\n"
    frames = [b"x" * length + b"\n\n"] * 3
    stream = b"".join(frames).replace(b"\n", line_end)
    reader = FrameReader(limit_bytes=length + 2 * len(line_end))
    assert [f for start in range(0, len(stream), size) for f in reader.feed(stream[start : start + size])] == frames


def test_an_answer_of_more_parts_than_any_has_is_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="500000 of the marks"):
        decode_chunk(b'{"x":[%b0]}' % (b"{}," * 500_001))


def test_a_long_answer_is_read_and_garbage_is_collected_afterwards_as_before() -> None:
    body = b'{"x":[%b0]}' % (b"{}," * 100_000)
    assert len(decode_chunk(body)["x"]) == 100_001
    assert gc.isenabled()
    gc.disable()
    try:
        decode_chunk(body)
        assert not gc.isenabled()
    finally:
        gc.enable()
