"""What one frame holds, and how one is written."""

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError
from serve.http1.sse import (
    decode_chunk,
    encode_frame,
    error_frame,
    frame_data,
    is_comment,
    is_done,
)


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
        (b"data: [DONE]\r\n\r\n", b"[DONE]"),
        (b"data: [DONE]\r\r", b"[DONE]"),
        (b": ping\rdata: 1\n\n", b"1"),
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
