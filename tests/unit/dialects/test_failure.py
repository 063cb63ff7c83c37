"""Errors of engines and of the gateway as one value."""

import json

import pytest

from serve.dialects.failure import Failure, Overflow, overflow_in
from serve.errors import OverloadedError

# Verbatim from vLLM 0.32, OpenAI, SGLang, Anthropic, Google and llama.cpp.
_MOST = "This model's maximum context length is 4096 tokens. However, your prompt contains "
_LENGTH = "The decoder prompt (length {}) "
TOO_LONG = {
    _MOST + "5000 input tokens, which exceeds this limit even without any output tokens.": Overflow(5000, 4096),
    _MOST + "at least 4097 input tokens, which exceeds this limit.": Overflow(4097, 4096),
    _MOST + "80000 characters (more than 65536 characters, which is the upper bound for 4096 input tokens).": Overflow(
        20000, 4096
    ),
    _LENGTH.format(5000) + "is longer than the maximum model length of 4096. Make sure that": Overflow(5000, 4096),
    _LENGTH.format(4096)
    + "plus the number of requested output tokens (at least 1) is longer than the maximum model length of "
    "4096.": Overflow(4097, 4096),
    "Input length (5000) exceeds model's maximum context length (4096).": Overflow(5000, 4096),
    "prompt is too long: 5000 tokens > 4096 maximum": Overflow(5000, 4096),
    "The input token count (5000) exceeds the maximum number of tokens allowed (4096).": Overflow(5000, 4096),
    "the request exceeds the available context size, try increasing it": Overflow(0, 0),
}


@pytest.mark.parametrize(("message", "overflow"), TOO_LONG.items())
def test_a_prompt_that_is_too_long_is_recognised(message: str, overflow: Overflow) -> None:
    body = json.dumps({"error": {"message": message, "type": "BadRequestError", "param": "x", "code": 400}}).encode()
    assert Failure.of_response(400, {}, body).overflow == overflow


def test_another_complaint_is_no_overflow() -> None:
    assert overflow_in("Please set temperature between 0 and 2") is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "why"}}', "why"),
        (b'{"object": "error", "message": "why"}', "why"),
        (b'{"error": "why"}', "why"),
        (b"Bad Gateway", "The engine answered with status 502."),
        (b"[]", "The engine answered with status 502."),
        (b"", "The engine answered with status 502."),
        (b'{"error": {"message": 7}}', "The engine answered with status 502."),
    ],
)
def test_an_engines_words_are_found_wherever_it_puts_them(body: bytes, message: str) -> None:
    failure = Failure.of_response(502, {"retry-after": "3"}, body)
    assert (failure.status, failure.message, failure.code, failure.retry_after_s) == (502, message, "engine_error", 3.0)


def test_an_error_in_the_middle_of_a_stream_is_the_engines() -> None:
    assert Failure.of_frame({"message": "why", "code": 500}) == Failure(502, "why", "engine_error")
    assert Failure.of_frame(None).status == 502


def test_an_error_of_our_own_keeps_all_it_says() -> None:
    error = OverloadedError("full", param="x", retry_after_s=2.0)
    headers = {"retry-after": "2"}
    assert Failure.of_error(error) == Failure(429, "full", "overloaded", "x", 2.0, None, headers)
