"""The usage that a client did not ask for is taken out of its stream, and nothing else is."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.stream.line import Line
from serve.stream.stages import End, WithoutUsage

USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
TELLS = {"id": "c", "choices": [], "usage": USAGE}
TEXT = {"id": "c", "choices": [{"index": 0, "delta": {"content": 'a "choices":[] "usage":{"prompt_tokens":9}'}}]}
WORD = {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}
STOP = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def stream(*payloads: object, end: str = "\n\n", compact: bool = True) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    frames = [json.dumps(each, separators=separators) for each in payloads]
    return "".join(f"data: {each}{end}" for each in (*frames, "[DONE]")).encode()


def left(data: bytes, *cuts: int) -> bytes:
    """What a plain stream's client gets, fed as it is from the event loop."""
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    line, out = Line([WithoutUsage(), End()]), list[bytes]()
    take = line.sink(out.append, lambda part: out.append(line.feed(part)))
    for start, end in pairwise(places):
        take(data[start:end])
    return b"".join(out) + line.finish()


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]), st.booleans())
def test_the_frame_with_the_usage_is_taken_out_however_it_is_written_and_cut(
    cuts: list[int], end: str, compact: bool
) -> None:
    told = stream(TEXT, WORD, WORD, STOP, TELLS, end=end, compact=compact)
    assert left(told, *cuts) == stream(TEXT, WORD, WORD, STOP, end=end, compact=compact)


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": -5}, {"prompt_tokens": "many"}, {"total_tokens": 1e99}])
def test_numbers_that_can_not_be_true_are_taken_out_as_well(usage: dict[str, object]) -> None:
    assert left(stream(WORD, STOP, {**TELLS, "usage": usage})) == stream(WORD, STOP)


@pytest.mark.parametrize(
    "other",
    [
        {"choices": [], "prompt_filter_results": []},  # Azure's first frame
        {"choices": [], "usage": None},
        {**STOP, "usage": USAGE},  # an end with usage is an end
        {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"choices": []}}], "usage": USAGE},
    ],
)
def test_a_frame_that_holds_more_or_no_usage_stays(other: dict[str, object]) -> None:
    assert left(stream(WORD, other, STOP)) == stream(WORD, other, STOP)


def test_words_pass_at_once_without_being_looked_at() -> None:
    word = stream(WORD).removesuffix(b"data: [DONE]\n\n")
    line, out = Line([WithoutUsage(), End()]), list[bytes]()
    for _ in range(3):  # two of a kind tell how they differ
        line.feed(word)
    line.sink(out.append, lambda _: pytest.fail("it was read"))(word)
    assert out == [word]
