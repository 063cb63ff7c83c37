"""How a stream ends: complete, or broken, in whatever words and shape its engine says so."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError
from serve.http1.sse import DONE, MAX_FRAME_BYTES
from serve.stream.ending import End, Ending, error_around, error_in, finish_of, is_finish, refusal_in, whole_failure
from serve.stream.line import Line

CHOICE = {"index": 0, "delta": {"content": '"error": "x"'}, "finish_reason": None}


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "ping"},
        {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": None, "usage": {"prompt_tokens": 1}},
        {"usage": {"completion_tokens": 1}, "timings": {"predicted_ms": 1.0}},
        {"choices": [], "prompt_filter_results": [{"content_filter_results": {"error": {"code": "x"}}}]},
        {"choices": [CHOICE], "error": None},
        {"choices": [CHOICE], "error": {}, "errors": [], "error_code": 0, "message": ""},
        {"choices": [CHOICE], "status": "in_progress", "code": 200},
        {"status": 200, "code": "0"},
        {"type": "no_error", "status": "no-error", "success": True, "ok": None},
        {"event": "error_free", "level": "info"},
    ],
)
def test_what_an_engine_says_beside_its_answer_is_no_error(chunk: dict[str, Any]) -> None:
    assert error_in(chunk) is None


@pytest.mark.parametrize(
    "frame",
    [
        b": ping\n\n",
        b"data: {}\n\n",
        b"event: message\ndata: {}\n\n",
        b"id: 1\r\nretry: 5\r\ndata: {}\r\n\r\n",
        b"data\n\n",
        b"\xef\xbb\xbf",
    ],
)
def test_the_lines_that_server_sent_events_may_have_are_no_error(frame: bytes) -> None:
    assert error_around(frame) is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r", b"\r\n"])
def test_the_name_of_an_event_is_read_with_any_line_ends(end: bytes, last: bytes) -> None:
    assert error_around(b"data: {}" + end + b"event: error" + last + last) is not None


def test_an_engines_words_are_told_and_not_all_of_them() -> None:
    error = error_in({"error": {"message": "out of\nmemory " * 1000}})
    assert error is not None
    assert "out of memory out of memory" in error.message
    assert len(error.message) < 600


REASONS = st.sampled_from([None, "", "stop", "length"])


@given(st.lists(st.tuples(st.integers(0, 3), REASONS), max_size=12), st.booleans())
def test_an_answer_is_complete_once_every_choice_that_began_has_ended(
    said: list[tuple[int, str | None]], parsed: bool
) -> None:
    ending = Ending()
    for index, reason in said:
        choice = {**CHOICE, "index": index, "finish_reason": reason}
        chunk = {"object": "chat.completion.chunk", "choices": [choice]}
        assert (ending.feed_chunk(chunk) if parsed else ending.feed(msgspec.json.encode(chunk))) is None
    begun, ended = {index for index, _ in said}, {index for index, reason in said if reason}
    assert ending.complete == (bool(begun) and begun == ended)


def test_a_finish_reason_that_is_no_end_is_told_as_it_is() -> None:
    assert [finish_of(reason) for reason in ("abort", "Error", "")] == ["abort", "Error", ""]


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource", "", None, 7, ["stop"]])
def test_a_finish_reason_that_nobody_knows_is_no_end(reason: Any) -> None:
    assert not is_finish(reason)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>welcome</html>",
        b"",
        b'{"choices": [{"mess',
        b'{"hello": "world"}',
        b'{"choices": []}',
        b'{"choices": ["one"]}',
        b'{"choices": [{"message": {"content": "one"}}], "error": {"message": "out of memory"}}',
        b'{"object": "error", "message": "out of memory"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_completion_is_no_answer(body: bytes) -> None:
    assert whole_failure(body) is not None


@pytest.mark.parametrize("content", ["one", 'an "error": {"message": 1}', "error", None])
def test_a_completion_is_one_whatever_it_says(content: str | None) -> None:
    completion = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "error": None}
    assert whole_failure(msgspec.json.encode(completion)) is None


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "server_error"},
        {"type": "response.failed"},
        {"event": "stream_error"},
        {"object": "InternalServerError"},
        {"level": "fatal", "text": "x"},
        {"severity": "ERROR"},
        {"success": False, "choices": []},
        {"ok": False},
        {"choices": [{**CHOICE, "status": "generation_failed"}]},
    ],
)
def test_whatever_is_named_an_error_or_no_success_is_one(chunk: dict[str, Any]) -> None:
    assert error_in(chunk) is not None


ENDED = b'{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}'


@pytest.mark.parametrize("member", [b'"delta"', b'"text"', b'"logprobs"', b'"index"', b'"finish_reason"'])
@pytest.mark.parametrize("value", [b'"\xff"', b"1e400", b'{"content":"\xff"}', b'"\\ud800"', b"[" * 2000 + b"]" * 2000])
@pytest.mark.parametrize("before", [[], [ENDED]], ids=["begins", "has ended"])
def test_a_chunk_of_nonsense_is_an_engines_fault_whenever_it_comes(
    before: list[bytes], member: bytes, value: bytes
) -> None:
    ending = Ending()
    for data in before:
        ending.feed(data)
    with suppress(EngineError):
        ending.feed(b'{"object":"chat.completion.chunk","choices":[{%b:%b}]}' % (member, value))


Habit = Callable[[bytes], bytes]

TEXTS = (b"a", b'data: {\\"error\\"', b"\\n\\n")
CONTENT = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text for text in TEXTS]
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
FAILED = b'data: {"error":{"message":"died"}}\n\n'
# As SSE allows: other line ends, no space, a comment.
HABITS: dict[str, Habit] = {
    "vLLM": lambda frame: frame,
    "CR LF": lambda frame: frame.replace(b"\n", b"\r\n"),
    "CR": lambda frame: frame.replace(b"\n", b"\r"),
    "no space": lambda frame: frame.replace(b"data: ", b"data:", 1),
    "comment": lambda frame: b": ping\n" + frame,
}
habits = pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
FRAMES = st.lists(st.sampled_from(CONTENT), max_size=4)
PLACES = st.lists(st.integers(0, 10_000))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(marks)]


def relayed(parts: list[bytes]) -> tuple[bytes, bool, bool]:
    """What the client gets, and whether the stream is known to be complete, or broken in the engine's own words."""
    end = End()
    return sent_by(parts, end), end.done, end.told


def sent_by(parts: list[bytes], end: End) -> bytes:
    line = Line([end])
    written: list[bytes] = []
    take = line.sink(written.append, lambda part: written.append(line.feed(part)))
    for part in parts:
        take(part)
    return b"".join(written) + line.finish()


@habits
@given(FRAMES, PLACES)
def test_a_whole_stream_passes_untouched_and_is_seen_to_be_done(
    habit: Habit, frames: list[bytes], places: list[int]
) -> None:
    stream = b"".join(map(habit, [*frames, STOP, DONE]))
    assert relayed(cut(stream, places)) == (stream, True, False)


@habits
@given(FRAMES, PLACES)
def test_nothing_follows_an_error_frame(habit: Habit, frames: list[bytes], places: list[int]) -> None:
    stream = b"".join(map(habit, [*frames, FAILED]))
    assert relayed(cut(stream + b"".join(map(habit, [*frames, DONE])), places)) == (stream, False, True)


@habits
@given(FRAMES, PLACES)
def test_a_stream_that_just_stops_is_neither_done_nor_failed(
    habit: Habit, frames: list[bytes], places: list[int]
) -> None:
    stream = b"".join(map(habit, frames))
    assert relayed(cut(stream, places)) == (stream, False, False)


_STOP = STOP.removesuffix(b"\n\n")


@pytest.mark.parametrize(
    ("stream", "sent", "done", "told"),
    [
        (b"", b"", False, False),
        (b"data: {}\n\n", b"data: {}\n\n", False, False),
        (_STOP + b"\n\ndata: [DONE]\n\n", _STOP + b"\n\ndata: [DONE]\n\n", True, False),
        (_STOP + b"\r\rdata: [DONE]\r\r", _STOP + b"\r\rdata: [DONE]\r\r", True, False),
        (_STOP + b"\n\ndata: [DONE]", _STOP + b"\n\ndata: [DONE]\n\n", True, False),
        (_STOP + b"\n\ndata: [DONE]\r\n", _STOP + b"\n\ndata: [DONE]\r\n\n", True, False),
        (b'data: {"content":"data: [DONE]', b"", False, False),
        (b'data: {}\n\ndata: {"cho', b"data: {}\n\n", False, False),
        (b'data: {}\n\ndata: {"error":{"mess', b"data: {}\n\n", False, False),
        (b'data: {}\n\ndata: {"error":{}}\n\n', b"data: {}\n\n", False, False),
        (b'data: {}\n\ndata: {"error":{"message":""}}\n\n',) * 2 + (False, True),
        (b'data: {"error":null}\n\n' + STOP + DONE,) * 2 + (True, False),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 5, 7, 1000])
def test_the_end_is_completed_where_it_lacks_line_ends_and_half_a_frame_is_withheld(
    stream: bytes, sent: bytes, done: bool, told: bool, size: int
) -> None:
    parts = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert relayed(parts) == (sent, done, told)


def test_a_done_inside_an_answer_that_breaks_off_is_no_end() -> None:
    _, done, _ = relayed([b'data: {"choices":[{"delta":{"content":"data: [DONE]'])
    assert not done


# What comes where `[DONE]` should.
NO_DONE = [b"", USAGE, USAGE[:-20], FAILED, b"data: [DON", b"Internal Server Error\n\n", b"event: error\ndata: {}\n\n"]


@habits
@given(FRAMES, st.sampled_from(NO_DONE), PLACES)
def test_an_answer_is_complete_with_its_finish_reason_however_the_stream_ends(
    habit: Habit, frames: list[bytes], after: bytes, places: list[int]
) -> None:
    answer = b"".join(map(habit, [*frames, STOP, *[after] * (after == USAGE)]))
    stream = answer if after in (b"", USAGE) else answer + habit(after)
    sent = sent_by(cut(stream, places), end := End())
    assert (sent, end.complete, end.done, end.failure) == (answer, True, False, None)


@given(FRAMES, st.sampled_from([*NO_DONE, DONE]), PLACES)
def test_where_several_answers_may_be_asked_for_only_done_says_that_none_is_missing(
    frames: list[bytes], after: bytes, places: list[int]
) -> None:
    sent_by(cut(b"".join([*frames, STOP, after]), places), end := End(several=True))
    assert end.complete == end.done == (after == DONE)


# What may follow the last choice: its usage, and what is no chunk.
AFTER = st.lists(st.sampled_from([USAGE, b": ping\n\n", b"event: ping\ndata: {}\n\n"]), max_size=2)
LATE = [
    *CONTENT,
    b'data: {"choices":[{"index":0,"message":{"content":"late"}}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"late"}]}\n\n',
    b'data: {"choices":[{"delta":"late"}]}\n\n',
]


@habits
@given(FRAMES, st.lists(st.sampled_from(LATE), min_size=1, max_size=4), AFTER, PLACES)
def test_what_an_engine_says_after_its_finish_reason_is_no_part_of_the_answer(
    habit: Habit, frames: list[bytes], late: list[bytes], after: list[bytes], places: list[int]
) -> None:
    stream = b"".join(map(habit, [*frames, STOP, *late, *after, DONE]))
    assert relayed(cut(stream, places)) == (b"".join(map(habit, [*frames, STOP, *after, DONE])), True, False)


def test_a_frame_too_long_to_be_read_after_the_end_is_withheld_too() -> None:
    late = b'data: {"choices":[{"delta":{"content":"' + b"x" * 2 * MAX_FRAME_BYTES + b'"}}]}\n\n'
    parts = [CONTENT[0], STOP, *cut(late, list(range(0, len(late), 2**18))), DONE]
    assert relayed(parts) == (CONTENT[0] + STOP + DONE, True, False)


def test_a_choice_that_has_ended_says_no_more_while_others_go_on() -> None:
    def said(index: int, text: str, reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": text}, "finish_reason": reason}
        return b"data: " + msgspec.json.encode({"object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"

    begun = [said(0, "a"), said(1, "b"), said(0, "c", "stop")]
    ended = [said(1, "d"), said(1, "", "stop"), DONE]
    assert relayed([*begun, said(0, "late"), *ended, said(0, "later")])[0] == b"".join([*begun, *ended])


def test_an_empty_delta_after_the_finish_reason_passes() -> None:
    empty = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    stream = b"".join([CONTENT[0], STOP, empty, DONE])
    assert relayed([stream]) == (stream, True, False)


OVERFLOW = {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}


def framed(chunk: object) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@pytest.mark.parametrize("code", [400, 413, 422])
@pytest.mark.parametrize("shape", [{"error": {}}, {"error": {"object": "error"}}, {"object": "error"}])
@pytest.mark.parametrize("before", [b"", b": ping\n\n", b"\xef\xbb\xbf"])
def test_a_response_that_begins_with_the_requests_fault_is_a_refusal(
    code: int, shape: dict[str, Any], before: bytes
) -> None:
    said = {**OVERFLOW, "code": code}
    error = {"error": {**shape["error"], **said}} if "error" in shape else {**shape, **said}
    data = msgspec.json.encode(error)
    assert refusal_in(before + framed(error) + DONE, streamed=True) == (code, data)
    assert refusal_in(data, streamed=False) == (code, data)


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        DONE,
        framed({"choices": [CHOICE]}),
        framed({"choices": [CHOICE]}) + framed({"error": OVERFLOW}),
        framed({"choices": [CHOICE], "error": OVERFLOW}),
        framed({"error": OVERFLOW})[:-9],
        framed({"error": "too long"}),
        framed({"error": {**OVERFLOW, "code": "400"}}),
        framed({"error": {**OVERFLOW, "message": "EngineCore encountered an issue."}}),
        *[framed({"error": {**OVERFLOW, "code": code}}) for code in (401, 404, 408, 429, 500, 503, None, 400.0, True)],
        b'data: {"error": {"code": 400\n\n',
        b'data: ["error"]\n\n',
    ],
)
def test_any_other_begin_is_no_refusal(begin: bytes) -> None:
    assert refusal_in(begin, streamed=True) is None
    assert refusal_in(begin.removeprefix(b"data: ").strip(), streamed=False) is None


@given(st.binary(max_size=99))
def test_whatever_a_response_begins_with_can_be_looked_at(noise: bytes) -> None:
    for begin in (b'"error"' + noise, b'{"error": ' + noise + b"}", b'data: {"error": ' + noise + b"}\n\n"):
        refusal_in(begin, streamed=True)
        refusal_in(begin, streamed=False)
