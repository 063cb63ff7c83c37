"""What clients of the Messages API read: answers as messages, with what streams share with them; errors; models."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from serve.dialects.answer import REASONING, TEXT, Answer, Call
from serve.dialects.dialect import Identity
from serve.dialects.failure import Failure
from serve.dialects.messages.conversation import client_id
from serve.dialects.messages.request import THREAD_NOT_FOUND, MessagesMemo
from serve.dialects.messages.tools import toolset_call
from serve.dialects.sealed_reasoning import seal
from serve.errors import GatewayError, MethodNotAllowedError, RouteNotFoundError

VERSION_HEADER = "anthropic-version"  # of requests; with it, `GET /v1/models` means this API's models
# Statuses and types as Claude-Code-like clients act on them. They retry a 401 without end and a 404 several times, and
# show a 400 or 403 at once.
_ERRORS = {
    400: (400, "invalid_request_error"),
    401: (403, "permission_error"),
    403: (403, "permission_error"),
    404: (400, "invalid_request_error"),
    408: (408, "timeout_error"),
    413: (413, "request_too_large"),
    422: (400, "invalid_request_error"),
    429: (429, "rate_limit_error"),
    500: (500, "api_error"),
    502: (502, "api_error"),
    503: (529, "overloaded_error"),
    504: (504, "timeout_error"),
    529: (529, "overloaded_error"),
}
# Codes on which Anthropic's SDKs act, with the status and type that they come with.
_CODES = {THREAD_NOT_FOUND: (404, "not_found_error")}
_REFUSED_KEY = (401, "authentication_error")  # with `x-should-retry: false`
# Errors about the path, not about what is asked for there.
_UNSERVED = {
    RouteNotFoundError.status: (404, "not_found_error"),
    MethodNotAllowedError.status: (405, "invalid_request_error"),
}


def encode_whole(completion: Mapping[str, Any], memo: MessagesMemo, identity: Identity) -> bytes:
    """Returns the message that a whole chat completion is.

    Raises:
        EngineError: The completion holds no message, or a call that can't be read.
    """
    answer = Answer(memo.taken_ids, identity.request_id)
    texts = answer.feed_whole(completion)
    content: list[dict[str, Any]] = []
    if memo.thinking and REASONING in texts:
        thought = texts[REASONING]
        shown = "" if memo.omitted else thought
        content.append({"type": "thinking", "thinking": shown, "signature": seal(thought)})
    if TEXT in texts:
        content.append({"type": "text", "text": texts[TEXT]})
    calls = client_calls(answer.calls(), memo)
    content += [tool_use(call, msgspec.Raw(call.arguments.encode())) for call in calls]
    if not content:
        content.append({"type": "text", "text": ""})
    message = empty_message(identity, content)
    message |= stop_of(answer, calls, memo, identity)
    message["usage"] = usage_of(answer, memo)
    if answer.specgate is not None:
        message["specgate"] = answer.specgate
    return msgspec.json.encode(message)


def empty_message(identity: Identity, content: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a message of which nothing but the content is known."""
    return {
        "id": f"msg_{identity.request_id}",
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def client_calls(calls: list[Call], memo: MessagesMemo) -> list[Call]:
    """Returns calls as the client has their tools."""
    return list(map(toolset_call, calls)) if memo.toolset else calls


def tool_use(call: Call, arguments: object) -> dict[str, Any]:
    """Returns the block of a call."""
    block = {"type": "tool_use", "id": client_id(call.id), "name": call.name, "input": arguments}
    return {**block, "toolset_name": call.toolset} if call.toolset else block


def stop_of(answer: Answer, calls: list[Call], memo: MessagesMemo, identity: Identity) -> dict[str, Any]:
    """Returns `stop_reason` and `stop_sequence` of a complete answer."""
    if answer.cut:
        is_short = answer.completion_tokens < memo.max_tokens
        full = is_short and answer.fills(identity.context)
        reason = "model_context_window_exceeded" if full else "max_tokens"
    elif answer.finish_reason == "content_filter":
        reason = "refusal"
    elif calls:
        reason = "tool_use"
    elif answer.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def usage_of(answer: Answer, memo: MessagesMemo) -> dict[str, Any]:
    """Returns the usage of a complete answer; cached tokens are no input tokens here."""
    usage = answer.usage(memo.prompt_tokens)
    cached = min(usage.cached, usage.prompt)
    details = {"output_tokens_details": {"thinking_tokens": usage.reasoning}} if usage.reasoning else {}
    return {
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion,
        **details,
    }


def error_of(failure: Failure) -> tuple[int, dict[str, Any]]:
    """Returns status and error object of a failure."""
    default = (400, "invalid_request_error") if 400 <= failure.status < 500 else (500, "api_error")
    status, kind = _CODES.get(failure.code) or _ERRORS.get(failure.status, default)
    message = failure.message
    details = {"details": {"error_code": failure.code}} if failure.code in _CODES else {}
    if failure.refused_key:
        status, kind = _REFUSED_KEY
    elif failure.overflow is not None:
        # Claude-Code-like clients compact their context on these words, and on no others.
        tokens, most = failure.overflow.tokens, failure.overflow.most
        status, kind = _ERRORS[400]
        message = f"prompt is too long: {tokens} tokens > {most} maximum" if most else f"prompt is too long: {message}"
    return status, {"type": "error", "error": {"type": kind, "message": message, **details}}


def encode_error(failure: Failure, request_id: str) -> tuple[int, bytes]:
    """Returns status and body of an error response."""
    status, body = error_of(failure)
    return status, msgspec.json.encode({**body, "request_id": request_id})


def encode_refusal(error: GatewayError, request_id: str) -> tuple[int, bytes]:
    """Returns status and body of an error response to a request that reached no route of the API."""
    failure = Failure.of_error(error)
    status, body = error_of(failure)
    if error.status in _UNSERVED:
        status, body["error"]["type"] = _UNSERVED[error.status]
    return status, msgspec.json.encode({**body, "request_id": request_id})


def model_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model in the form of the Messages API.

    Args:
        model: In OpenAI's form, with `max_model_len` in tokens if that is known.
    """
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.get("max_model_len"),
        "max_tokens": model.get("max_model_len"),
    }


def model_page(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns all models as the only page of a list."""
    page = [model_info(model) for model in models]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": False, "first_id": ends[0], "last_id": ends[1]}
