"""The last stage of a stream in a dialect: chat frames of any form in, its events out, and one end."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.dialects.api import Translate
from serve.dialects.failure import Failure
from serve.errors import EngineError
from serve.http1.sse import DONE, MAX_FRAME_BYTES, encode_frame
from serve.limits.answer_meter import Meter
from serve.stream.frame import Frame
from serve.stream.line import Line


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


class Encoder:
    """Writes one letter an event: what it was given is what comes out."""

    def start(self) -> bytes:
        return b"<"

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        if "odd" in chunk:
            raise ValueError("odd")
        if "broken" in chunk:
            raise EngineError("broken")
        if "panics" in chunk:
            raise PanicError(chunk["panics"])
        return "".join([choice["delta"].get("content") or "" for choice in chunk["choices"]]).encode()

    def feed_text(self, kind: str, text: str) -> bytes:
        return text.encode()

    def keep_alive(self) -> bytes:
        return b"~"

    def finish(self) -> bytes:
        return b">"

    def fail(self, failure: Failure) -> bytes:
        return b"!%d" % failure.status


def translate() -> Translate:
    return Translate(Encoder(), "r1")


def chunk(text: str) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), max_size=12)


@given(TEXTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 2000), max_size=6))
def test_every_text_comes_out_once_however_the_stream_is_written_and_cut(
    texts: list[str], line_end: str, cuts: list[int]
) -> None:
    frames = b"".join(encode_frame(chunk(text)) for text in texts) + b": ping\n\n" + DONE
    stream = frames.replace(b"\n", line_end.encode())
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    stage = translate()
    line = Line([stage])
    sent = b"".join(line.feed(stream[start:stop]) for start, stop in pairwise(edges)) + line.finish()
    assert (sent + stage.close(())).decode() == "".join(texts) + ">"


def test_a_frame_that_the_gateway_made_needs_no_bytes() -> None:
    stage = translate()
    assert [frame.raw for frame in stage.feed(Frame.of(chunk("a")))] == [b"a"]
    assert stage.close([Frame.of(chunk("b")), Frame(DONE)]) == b"b>"


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        ({"odd": 1}, b"!500"),
        ({"panics": "secret"}, b"!500"),
        ({"broken": 1}, b"!502"),
        ({"error": {"message": "died"}}, b"!502"),
    ],
)
def test_after_a_failure_nothing_follows_and_the_log_quotes_nothing(
    sent: dict[str, Any], events: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = translate()
    line = Line([stage])
    assert line.feed(encode_frame(chunk("a")) + encode_frame(sent) + encode_frame(chunk("b"))) == b"a" + events
    assert stage.ended
    assert (line.feed(DONE), stage.close(()), stage.keep_alive()) == (b"", b"", b"")
    assert stage.fail(Failure.of_frame("x")) == b""
    assert ("the answer could not be translated" in caplog.text) == (events == b"!500")
    assert "secret" not in caplog.text


def test_a_frame_too_long_to_be_read_is_a_failure() -> None:
    stage = translate()
    assert [frame.raw for frame in stage.feed(Frame(b"data: {", whole=False))] == [b"!502"]
    assert stage.failure is not None


def test_a_frame_of_a_call_may_be_longer_than_one_that_the_guard_reads() -> None:
    line = Line([Meter("p", False), translate()])
    assert line.feed(encode_frame(chunk("a" * 2 * MAX_FRAME_BYTES))) == b"a" * 2 * MAX_FRAME_BYTES
