"""What of a plain stream reaches the client and the meter, however it is cut and whatever it looks like."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.asgi import Sink
from serve.limits.answer_meter import AnswerMeter
from serve.limits.usage import Usage
from serve.proxy.model_name import ModelName
from serve.proxy.stream_end import StreamEnd
from serve.proxy.upstream_response import UpstreamResponse

DONE = b"data: [DONE]\n\n"


class Connection:
    """A response whose parts come as they are given."""

    status = 200

    def __init__(self, parts: list[bytes], content_type: str = "text/event-stream") -> None:
        self.headers = {"content-type": content_type}
        self._parts = [*parts]

    async def read(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""

    async def pump(self, sink: Sink) -> None:
        for part in self._parts:
            sink(part)


def frame(end: str = "\n\n", **members: object) -> bytes:
    return f"data: {json.dumps(members, separators=(',', ':'))}{end}".encode()


def chunk(text: str, end: str = "\n\n", **members: object) -> bytes:
    return frame(end, id="c", model="served", choices=[{"index": 0, "delta": {"content": text}}], **members)


@pytest.mark.parametrize(
    ("status", "kind", "is_stream"),
    [
        (200, "text/event-stream", True),
        (200, "Text/Event-Stream; charset=utf-8", True),
        (200, "application/json", False),
        (400, "text/event-stream", False),
        (503, "text/event-stream", False),
    ],
)
def test_an_error_is_no_stream_whatever_its_type(status: int, kind: str, is_stream: bool) -> None:
    connection = Connection([])
    connection.status, connection.headers = status, {"content-type": kind}
    assert UpstreamResponse(connection, b"").is_stream is is_stream  # type: ignore[arg-type]


USAGE = frame(id="c", model="served", choices=[], usage={"prompt_tokens": 12, "completion_tokens": 7})
ERROR = frame(error={"message": "out of memory"})
COMMENT = b": still here\n\n"
PIECES = {
    "chunks": chunk("a") + chunk("b"),
    "text that imitates": chunk('"choices":[],"usage":{"prompt_tokens":9} \n\ndata: [DONE]\n\n {"error": 1}'),
    "usage with choices": chunk("c", usage={"prompt_tokens": 3}),
    "usage": USAGE,
    "comment": COMMENT,
    "other line ends": chunk("d", end="\r\n\r\n"),
    "end": DONE,
    "error": ERROR,
}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Returns the data in parts: at its frames, and at some places more."""
    ends = [at + 2 for at in range(len(data)) if data.startswith(b"\n\n", at)]
    edges = sorted({0, *ends[:: 1 + len(places) % 2], *(place % len(data) for place in places), len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


async def relayed(parts: list[bytes], *, takes_out: bool = True) -> tuple[bytes, AnswerMeter, StreamEnd]:
    response = UpstreamResponse(Connection(parts), b"")  # type: ignore[arg-type]
    response.meter(meter := AnswerMeter("p", False, takes_out))
    written: list[bytes] = []
    await response.relay(written.append, end := StreamEnd())
    return b"".join(written), meter, end


@given(st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=8), st.lists(st.integers(0, 2000), max_size=6))
async def test_what_is_not_searched_changes_nothing(names: list[str], places: list[int]) -> None:
    parts = cut(b"".join(PIECES[name] for name in names), places)
    meter, end = AnswerMeter("p", False, takes_out=True), StreamEnd()
    searched = b"".join(end.feed(meter.feed(part)) for part in parts) + end.feed(meter.finish())
    written, skimmed, seen = await relayed(parts)
    assert written == searched
    assert (skimmed.frames, skimmed.usage) == (meter.frames, meter.usage)
    assert (seen.done, seen.failed) == (end.done, end.failed)


async def test_every_chunk_is_counted_and_the_usage_taken_out() -> None:
    written, meter, end = await relayed([chunk(text) for text in "abcdef"] + [USAGE, DONE])
    assert written == b"".join(chunk(text) for text in "abcdef") + DONE
    assert meter.usage == Usage(12, 0, 7)
    assert meter.frames == 8
    assert end.done


@given(st.lists(st.integers(1, 2000), max_size=6), st.booleans())
async def test_a_whole_answer_is_measured_however_it_is_cut(places: list[int], begins_empty: bool) -> None:
    answer = json.dumps({"choices": [{"message": {"content": "x" * 200}}], "usage": {"prompt_tokens": 12}}).encode()
    first, *rest = cut(answer, places)
    if begins_empty:
        first, rest = b"", [first, *rest]
    connection: Any = Connection(rest, "application/json")
    response = UpstreamResponse(connection, first)
    response.meter(meter := AnswerMeter("p", False, takes_out=False))
    assert await response.body() == answer
    assert meter.usage == Usage(12, 0, 0)


async def test_chunks_after_an_error_do_not_reach_the_client() -> None:
    written, _, end = await relayed([chunk("a"), chunk("b"), ERROR, chunk("c"), chunk("d"), DONE])
    assert written == chunk("a") + chunk("b") + ERROR
    assert end.failed


@pytest.mark.parametrize("keeps_last", [False, True])
async def test_what_others_must_read_is_never_passed_by(keeps_last: bool) -> None:
    parts = [chunk(text) for text in "abc"] + [DONE]
    connection: Any = Connection(parts)
    response = UpstreamResponse(connection, b"")
    response.meter(AnswerMeter("p", False, takes_out=True))
    response.pass_through(ModelName("served", "own"))
    if keeps_last:
        response.keep_last()
    written: list[bytes] = []
    await response.relay(written.append, StreamEnd())
    assert b"".join(written) == b"".join(parts).replace(b'"served"', b'"own"')
    assert list(response.last) == (parts if keeps_last else [])


async def test_a_reader_of_chunks_gets_each_of_them() -> None:
    parts = [chunk(text) for text in "abc"]
    response = UpstreamResponse(Connection(parts), b"")  # type: ignore[arg-type]
    response.meter(meter := AnswerMeter("p", False, takes_out=True))
    read: list[bytes] = []
    await response.pump(read.append)
    assert read == parts
    assert meter.frames == 3
