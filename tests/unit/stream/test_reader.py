"""Frames: the same wherever the network cuts them, and any that SSE allows."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import encode_frame
from serve.stream.frame import Frame
from serve.stream.reader import FrameReader

FRAMES = st.lists(
    st.dictionaries(st.text(max_size=4), st.text(max_size=12), max_size=3).map(encode_frame) | st.just(b": ping\n\n"),
    max_size=8,
)
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
BOM = b"\xef\xbb\xbf"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    return [
        data[start:stop] for start, stop in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)])
    ]


def read(reader: FrameReader, parts: list[bytes]) -> list[Frame]:
    return [frame for part in parts for frame in reader.feed(part)]


@given(FRAMES, LINE_ENDS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_the_same_however_they_are_cut(
    frames: list[bytes], line_end: bytes, marked: bool, cuts: list[int]
) -> None:
    sent = (BOM * marked + b"".join(frames)).replace(b"\n", line_end)
    assert [frame.raw for frame in read(FrameReader(), [*pieces(sent, cuts), b":"])] == frames


@given(FRAMES, LINE_ENDS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_an_exact_reader_loses_no_byte_and_reads_the_same_data(
    frames: list[bytes], line_end: bytes, marked: bool, cuts: list[int]
) -> None:
    sent = (BOM * marked + b"".join(frames)).replace(b"\n", line_end)
    reader = FrameReader(exact=True)
    got = [*read(reader, pieces(sent, cuts)), *reader.finish()]
    assert b"".join(frame.raw for frame in got) == sent
    data = [frame.data() for frame in got]
    assert [each for each in data if each is not None] == [
        each for frame in frames if (each := Frame(frame).data()) is not None
    ]


def test_a_byte_order_mark_counts_at_the_beginning_only() -> None:
    reader = FrameReader()
    assert [frame.raw for frame in reader.feed(BOM + b"data: 1\n\n")] == [b"data: 1\n\n"]
    (later,) = reader.feed(BOM + b"data: 2\n\n")
    assert later.data() is None


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_long_frame_in_tiny_pieces_is_one_frame(line_end: bytes) -> None:
    lines = line_end.join([b"data: x"] * 40_000)
    reader = FrameReader()
    frames = read(reader, [bytes([byte]) for byte in lines + 2 * line_end])
    assert [frame.raw for frame in frames] == [lines.replace(b"\r", b"") + b"\n\n"]


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_frame_that_is_too_long_comes_in_pieces_and_whatever_it_holds_is_not_taken_for_frames(
    size: int, exact: bool, line_end: bytes
) -> None:
    short, end = b"data: {}" + 2 * line_end, b"data: [DONE]" + 2 * line_end
    stream = short * 5 + b"data: " + b"data: [DONE] " * 1_000 + 2 * line_end + end
    reader = FrameReader(limit_bytes=1_000, exact=exact)
    got = read(reader, [stream[start : start + size] for start in range(0, len(stream), size)] + [b":"])
    assert b"".join(frame.raw for frame in got) == (stream if exact else stream.replace(b"\r", b""))
    assert [frame.data() for frame in got if frame.whole] == [b"{}"] * 5 + [b"[DONE]"]
    assert all(frame.data() is None for frame in got if not frame.whole)


def test_no_more_waits_than_the_limit() -> None:
    reader = FrameReader(limit_bytes=1_000)
    for _ in range(100):
        read(reader, [b"x" * 700])
        assert reader.pending_bytes <= 1_000


@given(st.integers(1, 40), st.booleans(), st.integers(1, 7))
def test_frames_up_to_the_limit_are_whole(length: int, crlf: bool, size: int) -> None:
    line_end = b"\r\n" if crlf else b"\n"
    frames = [b"x" * length + b"\n\n"] * 3
    stream = b"".join(frames).replace(b"\n", line_end)
    reader = FrameReader(limit_bytes=length + 2 * len(line_end))
    got = read(reader, [stream[start : start + size] for start in range(0, len(stream), size)])
    assert [(frame.raw, frame.whole) for frame in got] == [(frame, True) for frame in frames]


@pytest.mark.parametrize(
    ("stream", "left"),
    [
        (b"", []),
        (b"data: {}\n\n", []),
        (b"data: {}\r\rdata: [DONE]\r\r", [b"data: [DONE]\r\r"]),
        (b"data: {}\n\ndata: [DONE]", [b"data: [DONE]\n\n"]),
        (b"data: {}\n\ndata: [DONE]\r\n", [b"data: [DONE]\r\n\n\n"]),
        (b'data: {}\n\ndata: {"cho', [b'data: {"cho\n\n']),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_last_frame_is_completed_where_the_stream_ends(stream: bytes, left: list[bytes], size: int) -> None:
    reader = FrameReader(exact=True)
    read(reader, [stream[start : start + size] for start in range(0, len(stream), size)])
    assert [frame.raw for frame in reader.finish()] == left


@given(st.lists(st.text(max_size=5), min_size=2, max_size=12), LINE_ENDS, st.booleans(), st.booleans())
def test_a_frame_that_is_known_by_its_bytes_adds_the_text_that_it_holds(
    texts: list[str], line_end: bytes, exact: bool, at_once: bool
) -> None:
    frames = [encode_frame({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    sent = [frame.replace(b"\n", line_end) for frame in frames]
    reader = FrameReader(exact=exact)
    got = []
    for part in [b"".join(sent)] if at_once else sent:
        for frame in reader.feed(part):
            if frame.template is None and (data := frame.data()) is not None:
                frame.parsed(data)
            got.append(frame)
    for frame, text in zip(got, texts, strict=False):
        if frame.template is not None:
            assert frame.text == text
            assert Frame(frame.raw).parsed(frame.data() or b"")["choices"][0]["delta"] == {"content": text}
            other = Frame(frame.with_text("other").encoded())
            assert other.parsed(other.data() or b"")["choices"][0]["delta"] == {"content": "other"}
