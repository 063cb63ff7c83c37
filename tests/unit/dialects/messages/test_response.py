"""Whole Messages answers and errors."""

import json
from typing import Any

import pytest

from serve.dialects.dialect import Identity
from serve.dialects.failure import Failure, Overflow
from serve.dialects.messages import MESSAGES
from serve.dialects.messages.request import MessagesMemo
from serve.errors import EngineError


def whole(message: dict[str, Any], finish: str = "stop", context: int | None = None, **more: Any) -> dict[str, Any]:
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}
    memo = MessagesMemo(10, thinking=True, max_tokens=100)
    answer: dict[str, Any] = json.loads(MESSAGES.encode_whole(completion, memo, Identity("r1", "m", context)))
    return answer


def call(arguments: str) -> dict[str, Any]:
    return {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_thinking_text_and_calls_stand_in_this_order() -> None:
    message = whole(
        {"content": "so", "reasoning_content": "hm", "tool_calls": [call('{"a": [1.50, "é"]}')]}, "tool_calls"
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][2]["input"] == {"a": [1.5, "é"]}
    assert message["stop_reason"] == "tool_use"
    assert message["id"] == "msg_r1"


def test_usage_counts_cached_tokens_apart() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert whole({"content": "x"}, usage=usage)["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 3,
    }  # fmt: skip


def test_usage_tells_the_tokens_of_thinking_if_the_engine_does() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}}
    assert whole({"content": "x"}, usage=usage)["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


def test_usage_that_is_no_number_is_estimated() -> None:
    usage = {"prompt_tokens": "90", "completion_tokens": True, "prompt_tokens_details": {"cached_tokens": "4"}}
    assert whole({"content": "x" * 40}, usage=usage)["usage"] == {
        "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 10,
    }  # fmt: skip


def test_a_broken_call_makes_no_answer() -> None:
    with pytest.raises(EngineError):
        whole({"tool_calls": [call('{"a": ')]}, "tool_calls")


def test_a_call_that_the_limit_cut_is_left_out() -> None:
    message = whole({"content": None, "tool_calls": [call('{"a": ')]}, "length")
    assert (message["stop_reason"], [block["type"] for block in message["content"]]) == ("max_tokens", ["text"])


@pytest.mark.parametrize(
    ("prompt", "completion", "context", "reason"),
    [
        (60, 40, 100, "model_context_window_exceeded"),
        (60, 40, 101, "max_tokens"),  # an engine's own limit, for all we know
        (60, 40, None, "max_tokens"),
        (60, 100, 160, "max_tokens"),
        (None, None, 100, "max_tokens"),
    ],
)
def test_an_answer_that_its_limit_did_not_cut_has_filled_the_context(
    prompt: int | None, completion: int | None, context: int | None, reason: str
) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    assert whole({"content": "x"}, "length", context, usage=usage)["stop_reason"] == reason


def test_the_guards_mark_is_kept() -> None:
    assert whole({"content": "x"}, specgate={"rerun": "standard"})["specgate"] == {"rerun": "standard"}


@pytest.mark.parametrize(
    ("status", "as_status", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 403, "permission_error"),
        (404, 400, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (418, 400, "invalid_request_error"),
        (422, 400, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (502, 502, "api_error"),
        (503, 529, "overloaded_error"),
        (504, 504, "timeout_error"),
        (599, 500, "api_error"),
    ],
)
def test_a_failure_has_the_status_on_which_these_clients_act(status: int, as_status: int, kind: str) -> None:
    given, body = MESSAGES.encode_error(Failure(status, "why", "code"), "r1")
    assert given == as_status
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "r1"}


@pytest.mark.parametrize(
    ("overflow", "message"),
    [
        (Overflow(9001, 8192), "prompt is too long: 9001 tokens > 8192 maximum"),
        (Overflow(0, 0), "prompt is too long: the engine's words"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_know(overflow: Overflow, message: str) -> None:
    status, body = MESSAGES.encode_error(Failure(413, "the engine's words", "x", overflow=overflow), "r1")
    assert (status, json.loads(body)["error"]) == (400, {"type": "invalid_request_error", "message": message})
