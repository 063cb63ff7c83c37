"""Usage is read off the bytes of an answer, however they are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.limits.answer_meter import Meter
from serve.limits.usage import Usage
from serve.stream.line import Line

USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
TELLS = {"id": "c", "choices": [], "usage": USAGE}
TEXT = {"id": "c", "choices": [{"index": 0, "delta": {"content": 'a "choices":[] "usage":{"prompt_tokens":9}'}}]}


def stream(*payloads: object, end: str = "\n\n", compact: bool = True) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    return "".join(f"data: {json.dumps(each, separators=separators)}{end}" for each in payloads).encode() + (
        f"data: [DONE]{end}".encode()
    )


def read(meter: Meter, data: bytes, cuts: list[int]) -> bytes:
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    line = Line([meter])
    return b"".join(line.feed(data[a:b]) for a, b in pairwise(places)) + line.finish()


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]), st.booleans())
def test_the_last_frame_tells_the_usage_and_passes(cuts: list[int], end: str, compact: bool) -> None:
    data = stream(TEXT, TEXT, TELLS, end=end, compact=compact)
    meter = Meter("p", False)
    meter.status = 200
    assert read(meter, data, cuts) == data
    assert meter.usage == Usage(12, 5, 7)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_frames_without_choices_need_not_tell_usage(cuts: list[int]) -> None:
    """Azure's first frame holds the results of its filters."""
    data = stream({"choices": [], "prompt_filter_results": []}, TEXT)
    meter = Meter("p", False)
    meter.status = 200
    assert read(meter, data, cuts) == data
    assert meter.usage is None


def test_frames_that_arrived_are_counted() -> None:
    meter = Meter("p", False)
    meter.status = 200
    Line([meter]).feed(stream(TEXT, TEXT)[:-3])
    assert meter.chunks == 2


def test_a_stream_that_breaks_off_keeps_its_last_bytes() -> None:
    meter = Meter("p", False)
    meter.status = 200
    line = Line([meter])
    assert line.feed(b'data: {"cho') + line.finish() == b'data: {"cho\n\n'


@pytest.mark.parametrize("members", [{"choices": [TEXT], "usage": USAGE}, {"usage": USAGE, "choices": [TEXT]}])
def test_a_whole_answer_tells_its_usage_wherever_it_stands(members: dict[str, object]) -> None:
    meter = Meter("p", False)
    meter.answered(200)
    meter.whole(json.dumps(members).encode())
    assert meter.usage == Usage(12, 5, 7)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"usage":null}', b'{"usage":5}', b"\xff"])
def test_an_answer_that_tells_nothing_has_no_usage(body: bytes) -> None:
    meter = Meter("p", False)
    meter.answered(200)
    meter.whole(body)
    assert meter.usage is None


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": 7},
        {"prompt_tokens": 5, "completion_tokens": -7},
        {"prompt_tokens": 10**30, "completion_tokens": 7},
        {"prompt_tokens": 5, "completion_tokens": 10**12},
        {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": -(10**6)}},
    ],
)
def test_numbers_that_can_not_be_true_are_no_usage(usage: dict[str, object]) -> None:
    """They were charged: a negative number refilled the bucket."""
    meter = Meter("p", False)
    meter.answered(200)
    read(meter, stream(TEXT, {**TELLS, "usage": usage}), [])
    assert meter.usage is None
    meter.whole(json.dumps({"choices": [TEXT], "usage": usage}).encode())
    assert meter.usage is None


def test_no_more_is_cached_than_the_prompt_has() -> None:
    meter = Meter("p", False)
    meter.answered(200)
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}}
    meter.whole(json.dumps({"usage": usage}).encode())
    assert meter.usage == Usage(5, 5, 7)


def test_what_is_no_chunk_of_an_answer_is_not_counted() -> None:
    meter = Meter("p", False)
    meter.answered(200)
    Line([meter]).feed(b": still here\n\n" + stream(TEXT, TELLS))
    assert meter.chunks == 1
