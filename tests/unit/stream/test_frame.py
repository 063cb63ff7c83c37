"""Frames: the same wherever the network cuts them, and read by their bytes as by their JSON."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import decode_chunk, encode_frame, frame_data
from serve.stream.frame import (
    Frame,
    FrameReader,
    FrameTemplate,
    ReadFrame,
    TemplateLearner,
    TextDelta,
    TextPlace,
    lone_delta,
)

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
    lambda runs: [made for run in runs for made in (run if isinstance(run, list) else [run])]
)


def spelt(made: dict[str, Any], ascii_only: bool) -> bytes:
    """A frame by another engine: with spaces, perhaps with every character but ASCII's as an escape."""
    return b"data: " + json.dumps(made, ensure_ascii=ascii_only).encode() + b"\n\n"


def match(learner: TemplateLearner, frame: bytes) -> TextDelta | None:
    template = learner.template
    text = template.match(frame) if template is not None else None
    return TextDelta(template.place, text) if template is not None and text is not None else None


def read(frame: bytes) -> TextDelta | None:
    data = frame_data(frame)
    assert data is not None
    return lone_delta(decode_chunk(data))


@given(STREAMS, st.sampled_from([encode_frame, lambda made: spelt(made, True), lambda made: spelt(made, False)]))
def test_a_match_is_what_parsing_gives(stream: list[dict[str, Any]], frame: Any) -> None:
    learner = TemplateLearner()
    for made in stream:
        sent = frame(made)
        matched = match(learner, sent)
        assert matched in (None, read(sent))
        if matched is None:
            learner.learn(sent, made)
        else:
            assert learner.template is not None
            rendered = learner.template.render('other "text" 😀')
            assert read(rendered) == matched._replace(text='other "text" 😀')


@pytest.mark.parametrize("delta", [lambda text: {"content": text}, arguments])
def test_after_two_of_a_kind_frames_match(delta: Any) -> None:
    learner = TemplateLearner()
    for text in ("one", "two"):
        made = chunk(delta(text))
        assert match(learner, encode_frame(made)) is None
        learner.learn(encode_frame(made), made)
    for text in ("three", "a\n", "é", '{"a":"'):
        sent = encode_frame(chunk(delta(text)))
        assert match(learner, sent) == read(sent)
    assert match(learner, encode_frame(chunk(delta("")))) is None
    assert match(learner, encode_frame(chunk(delta("x"), choice=1))) is None


@pytest.mark.parametrize("broken", [b'"', b'","logprobs":1,"x":"', b"\xff", b"\n", b"\\", b"\\ud83d"])
def test_a_frame_with_no_string_in_the_texts_place_does_not_match(broken: bytes) -> None:
    learner = TemplateLearner()
    for text in ("one", "two"):
        made = chunk({"content": text})
        learner.learn(encode_frame(made), made)
    sent = encode_frame(made).replace(b"two", broken)
    assert match(learner, sent) is None


def test_frames_that_also_differ_elsewhere_make_no_template_and_after_some_of_them_none_is_looked_for() -> None:
    learner = TemplateLearner()
    for number in range(40):
        made = chunk({"content": "x"}, created=number)
        learner.learn(encode_frame(made), made)
        assert learner.template is None
    for text in ("one", "two"):
        made = chunk({"content": text})
        learner.learn(encode_frame(made), made)
    assert learner.template is None


@pytest.mark.parametrize("text", ["m", "id", ":", '","', "\x00?"])
def test_a_text_that_also_occurs_elsewhere_in_the_frame_makes_no_wrong_template(text: str) -> None:
    parsed = ReadFrame(encode_frame(chunk({"content": text})), TextDelta(TextPlace(0, "content", -1), text))
    template = FrameTemplate.learn(parsed, parsed)
    other = encode_frame(chunk({"content": "other"}))
    assert template is None or template.render("other") == other


def test_two_frames_are_no_match_even_if_they_begin_and_end_like_one() -> None:
    """Whoever has a match need not look for the end of the frame."""
    learner = TemplateLearner()
    first, second = ({"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("a", "b"))
    for chunk in (first, second):
        learner.learn(encode_frame(chunk), chunk)
    assert learner.template is not None
    assert learner.template.match(encode_frame(first)) == "a"
    assert learner.template.match(encode_frame(first) + encode_frame(second)) is None
    assert learner.template.match(learner.template.prefix + b'a" \n\n' + learner.template.suffix) is None


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


def read_parts(reader: FrameReader, parts: list[bytes]) -> list[Frame]:
    return [frame for part in parts for frame in reader.feed(part)]


@given(FRAMES, LINE_ENDS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_the_same_however_they_are_cut(
    frames: list[bytes], line_end: bytes, marked: bool, cuts: list[int]
) -> None:
    sent = (BOM * marked + b"".join(frames)).replace(b"\n", line_end)
    assert [frame.raw for frame in read_parts(FrameReader(), [*pieces(sent, cuts), b":"])] == frames


@given(FRAMES, LINE_ENDS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_an_exact_reader_loses_no_byte_and_reads_the_same_data(
    frames: list[bytes], line_end: bytes, marked: bool, cuts: list[int]
) -> None:
    sent = (BOM * marked + b"".join(frames)).replace(b"\n", line_end)
    reader = FrameReader(exact=True)
    got = [*read_parts(reader, pieces(sent, cuts)), *reader.finish()]
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
    frames = read_parts(reader, [bytes([byte]) for byte in lines + 2 * line_end])
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
    got = read_parts(reader, [stream[start : start + size] for start in range(0, len(stream), size)] + [b":"])
    assert b"".join(frame.raw for frame in got) == (stream if exact else stream.replace(b"\r", b""))
    assert [frame.data() for frame in got if frame.whole] == [b"{}"] * 5 + [b"[DONE]"]
    assert all(frame.data() is None for frame in got if not frame.whole)


def test_no_more_waits_than_the_limit() -> None:
    reader = FrameReader(limit_bytes=1_000)
    for _ in range(100):
        read_parts(reader, [b"x" * 700])
        assert reader.pending_bytes <= 1_000


@given(st.integers(1, 40), st.booleans(), st.integers(1, 7))
def test_frames_up_to_the_limit_are_whole(length: int, crlf: bool, size: int) -> None:
    line_end = b"\r\n" if crlf else b"\n"
    frames = [b"x" * length + b"\n\n"] * 3
    stream = b"".join(frames).replace(b"\n", line_end)
    reader = FrameReader(limit_bytes=length + 2 * len(line_end))
    got = read_parts(reader, [stream[start : start + size] for start in range(0, len(stream), size)])
    assert [(frame.raw, frame.whole) for frame in got] == [(frame, True) for frame in frames]


@pytest.mark.parametrize(
    ("stream", "left"),
    [
        (b"", []),
        (b"data: {}\n\n", []),
        (b"data: {}\r\rdata: [DONE]\r\r", [b"data: [DONE]\r\r"]),
        (b"data: {}\n\ndata: [DONE]", [b"data: [DONE]\n\n"]),
        (b"data: {}\n\ndata: [DONE]\n", [b"data: [DONE]\n\n"]),
        (b"data: {}\n\ndata: [DONE]\r\n", [b"data: [DONE]\r\n\n"]),
        (b"data: {}\n\ndata: [DONE]\r", [b"data: [DONE]\r\n\n"]),
        (b'data: {}\n\ndata: {"cho', [b'data: {"cho\n\n']),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_last_frame_is_completed_where_the_stream_ends(stream: bytes, left: list[bytes], size: int) -> None:
    reader = FrameReader(exact=True)
    read_parts(reader, [stream[start : start + size] for start in range(0, len(stream), size)])
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
