"""Frames: the same however the bytes arrive, and the data of any that SSE allows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError
from serve.sse import FrameReader, decode_chunk, encode_frame, frame_data, is_done

FRAMES = st.lists(
    st.dictionaries(st.text(max_size=4), st.text(max_size=12), max_size=3).map(encode_frame) | st.just(b": ping\n\n"),
    max_size=8,
)


@given(FRAMES, st.booleans(), st.data())
def test_frames_are_the_same_however_they_are_cut(frames: list[bytes], crlf: bool, data: st.DataObject) -> None:
    whole = b"".join(frames)
    sent = whole.replace(b"\n", b"\r\n") if crlf else whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    reader = FrameReader()
    pieces = [sent[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


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
