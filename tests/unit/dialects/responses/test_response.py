"""Errors: the statuses and codes on which agents stop, retry, or compact their conversation."""

import json

import pytest

from serve.dialects.failure import Failure, Overflow
from serve.dialects.responses.response import encode_error, stream_error
from serve.errors import (
    DeadlineError,
    EngineError,
    GatewayError,
    IntegrityError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PolicyConflictError,
    PoolUnavailableError,
)

FULL = Failure(400, "too long", "BadRequestError", overflow=Overflow(9000, 4096))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequestError("x", param="input"), 400, "invalid_request_error"),
        (ModelNotFoundError("x", param="model"), 400, "invalid_request_error"),  # agents try a 404 six times
        (PolicyConflictError("x"), 400, "invalid_request_error"),
        (OverloadedError("x", retry_after_s=2.0), 429, "rate_limit_error"),
        (EngineError("x"), 502, "server_error"),
        (IntegrityError("x"), 502, "server_error"),
        (PoolUnavailableError("x"), 503, "server_error"),
        (DeadlineError("x"), 504, "server_error"),
        (GatewayError("x"), 500, "server_error"),
    ],
)
def test_an_error_response_has_openais_shape(error: GatewayError, status: int, kind: str) -> None:
    found, body = encode_error(Failure.of_error(error), "r1")
    fields = json.loads(body)["error"]
    assert (found, fields["type"], fields["code"], fields["param"]) == (status, kind, error.code, error.param)


def test_an_engines_refusal_names_the_clients_own_field() -> None:
    failure = Failure(400, "bad", "BadRequestError", "messages[0].content")
    assert json.loads(encode_error(failure, "r1")[1])["error"]["param"] == "messages[0].content"
    for given, expected in [("messages", "input"), ("response_format.type", "text.format.type")]:
        failure = Failure(400, "bad", "BadRequestError", given)
        assert json.loads(encode_error(failure, "r1")[1])["error"]["param"] == expected


def test_a_prompt_that_is_too_long_has_the_code_on_which_agents_compact() -> None:
    status, body = encode_error(FULL, "r1")
    assert (status, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")
    error = stream_error(FULL)
    assert error["code"] == "context_length_exceeded"
    assert ("9000" in error["message"], "4096" in error["message"]) == (True, True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IntegrityError("x"), "invalid_prompt"),
        (DeadlineError("x"), "invalid_prompt"),
        (InvalidRequestError("x"), "invalid_prompt"),
        (EngineError("x"), "server_error"),
        (PoolUnavailableError("x"), "server_error"),
        (GatewayError("x"), "server_error"),
        (OverloadedError("x"), "rate_limit_exceeded"),
    ],
)
def test_a_stream_that_fails_says_if_another_try_can_help(error: GatewayError, code: str) -> None:
    assert stream_error(Failure.of_error(error))["code"] == code


def test_an_overload_says_how_long_to_wait_in_the_words_that_agents_read() -> None:
    error = stream_error(Failure.of_error(OverloadedError("Busy.", retry_after_s=1.5)))
    assert error["message"] == "Busy. Please try again in 1.5s."
