"""What is no error: engines say much besides their answer. The shapes of errors are in tests/component."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError
from serve.stream.ending import Ending, error_around, error_in, finish_of, is_finish, whole_failure

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
