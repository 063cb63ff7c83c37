"""Failures in the words of the Responses API, chosen by what agents do about them.

Codex, measured: it shows the message of a 400 and gives up; after any other status it tries again, up to thirty times,
and shows its own words. In a stream it acts on the code of `response.failed`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serve.dialects.failure import Failure
from serve.errors import DeadlineError, IntegrityError, ModelNotFoundError, OverloadedError, PolicyConflictError

OVERFLOW = "context_length_exceeded"
# Codex waits as long as these words say.
_TRY_AGAIN = "Please try again in {seconds:g}s."

# Codes of our own errors that no retry mends, as a stream names them.
_FINAL = frozenset({IntegrityError.default_code, DeadlineError.default_code, PolicyConflictError.default_code})
# Statuses that agents take for a fault of the network, where the request is at fault.
_SHOWN = frozenset({ModelNotFoundError.status, PolicyConflictError.status})
_TYPES = {429: "rate_limit_error"}
_STREAM_TYPES = {"rate_limit_exceeded": "rate_limit_error", "server_error": "server_error"}


def encode_error(failure: Failure, request_id: str) -> tuple[int, bytes]:
    """Returns status and body of an error response.

    Args:
        failure: What went wrong.
        request_id: Of no use here: the header `x-request-id` has it.
    """
    status = 400 if failure.status in _SHOWN or failure.overflow else failure.status
    kind = "invalid_request_error" if status < 429 else _TYPES.get(status, "server_error")
    code = OVERFLOW if failure.overflow else failure.code
    error = {"message": _message(failure), "type": kind, "param": _param(failure), "code": code}
    return status, msgspec.json.encode({"error": error})


def stream_error(failure: Failure) -> dict[str, Any]:
    """Returns the error of a response that failed after it had begun.

    The code `invalid_prompt` makes an agent stop and show the message, `server_error` makes it try again.
    """
    if failure.overflow:
        code = OVERFLOW
    elif failure.status == OverloadedError.status:
        code = "rate_limit_exceeded"
    elif failure.status < 500 or failure.code in _FINAL:
        code = "invalid_prompt"
    else:
        code = "server_error"
    return {"code": code, "message": _message(failure)}


def error_members(error: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of an `error` event, which OpenAI documents side by side and sends in an object.

    Args:
        error: From `stream_error`.
    """
    members = {**error, "param": None}
    return {**members, "error": {"type": _STREAM_TYPES.get(error["code"], "invalid_request_error"), **members}}


def _message(failure: Failure) -> str:
    if failure.overflow and failure.overflow.most:
        fits = f"{failure.overflow.tokens} tokens, and {failure.overflow.most} fit"
        return f"Your input exceeds the context window of this model: {fits}. {failure.message}"
    if failure.status == OverloadedError.status and failure.retry_after_s:
        return f"{failure.message} {_TRY_AGAIN.format(seconds=failure.retry_after_s)}"
    return failure.message


# A chat body's fields by the names that the client used.
_PARAMS: Mapping[str, str] = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}


def _param(failure: Failure) -> str | None:
    if failure.param is None:
        return None
    head, dot, rest = failure.param.partition(".")
    return _PARAMS.get(head, head) + dot + rest
