"""The response object: its output items, its usage and its states; a whole completion as one; and failures in the words
of the Responses API, chosen by what agents do about them.

Codex, measured: it shows the message of a 400 and gives up; after any other status it tries again, up to thirty times,
and shows its own words. In a stream it acts on the code of `response.failed`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import msgspec

from serve.dialects.answer import REASONING, TEXT, Answer, AnswerUsage, Call
from serve.dialects.dialect import Identity
from serve.dialects.failure import Failure
from serve.dialects.responses.request import ResponsesMemo
from serve.dialects.responses.tools import BUILT_IN, CUSTOM_INPUT, BuiltIn
from serve.dialects.sealed_reasoning import seal
from serve.errors import (
    DeadlineError,
    EngineError,
    IntegrityError,
    ModelNotFoundError,
    OverloadedError,
    PolicyConflictError,
)

Item = dict[str, Any]

# Why an answer is incomplete, by the engine's finish reason.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
OVERFLOW = "context_length_exceeded"
# Codex waits as long as these words say.
_TRY_AGAIN = "Please try again in {seconds:g}s."

# Codes of our own errors that no retry mends, as a stream names them.
_FINAL = frozenset({IntegrityError.default_code, DeadlineError.default_code, PolicyConflictError.default_code})
# Statuses that agents take for a fault of the network, where the request is at fault.
_SHOWN = frozenset({ModelNotFoundError.status, PolicyConflictError.status})
_TYPES = {429: "rate_limit_error"}
_STREAM_TYPES = {"rate_limit_exceeded": "rate_limit_error", "server_error": "server_error"}
# A chat body's fields by the names that the client used.
_PARAMS: Mapping[str, str] = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """The parts of the response object that stay the same from `response.created` to the end."""

    memo: ResponsesMemo
    identity: Identity
    created_at: int  # Unix time in seconds

    def answer(self) -> Answer:
        """Returns the answer that the response is to hold, still empty."""
        return Answer(self.memo.taken_ids, self.identity.request_id)

    def at(
        self, status: str, output: Iterable[Item] = (), usage: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Returns the object in one state. Further members replace those of the same name."""
        return {
            "id": f"resp_{self.identity.request_id}",
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.identity.model,
            **self.memo.echo,
            "output": list(output),
            "usage": usage,
            **more,
        }

    def ended(self, answer: Answer, output: Iterable[Item]) -> dict[str, Any]:
        """Returns the object of an answer that ended, completed or incomplete."""
        usage = usage_object(answer.usage(self.memo.prompt_tokens))
        marks = {} if answer.specgate is None else {"specgate": answer.specgate}
        if (reason := _INCOMPLETE.get(answer.finish_reason)) is not None:
            return self.at("incomplete", output, usage, incomplete_details={"reason": reason}, **marks)
        return self.at("completed", output, usage, **marks)

    def item_id(self, prefix: str, index: int) -> str:
        """Returns the id of an output item, the same in a stream and in the final object."""
        return f"{prefix}_{self.identity.request_id}_{index}"

    def message(self, index: int, text: str | None, status: str = "completed") -> Item:
        """Returns a message; its content is still empty if `text` is None."""
        content = [] if text is None else [output_text(text)]
        identity = self.item_id("msg", index)
        return {"id": identity, "type": "message", "status": status, "role": "assistant", "content": content}

    def reasoning(self, index: int, text: str | None, status: str = "completed") -> Item:
        """Returns a reasoning item; empty as yet if `text` is None, and sealed once it is complete."""
        parts = [] if text is None else [reasoning_part(text, summary=self.memo.summary)]
        item: Item = {"id": self.item_id("rs", index), "type": "reasoning", "status": status, "summary": []}
        item["summary" if self.memo.summary else "content"] = parts
        if self.memo.seals:
            item["encrypted_content"] = None if text is None or status == "in_progress" else seal(text)
        return item

    def call(self, index: int, call: Call) -> Item:
        """Returns a complete call in the shape of the client's tool.

        Raises:
            EngineError: The call of a custom tool holds no text, or that of a built-in one no such arguments.
        """
        if (built_in := self.built_in(call)) is not None:
            said = msgspec.json.decode(call.arguments)
            if not jsonschema_rs.is_valid(built_in.parameters, said):  # clients fail on an item with other members
                raise EngineError(f"The model called the tool {call.name!r} with arguments that it does not take.")
            arguments = {**said, **built_in.implied, **said}  # in the model's order: it comes back in the next turn
            named = {"id": self.item_id(built_in.prefix, index), "type": built_in.item, "call_id": call.id}
            members = {built_in.member: arguments} if built_in.member else arguments
            return {**named, **built_in.beside, **members, "status": "completed"}
        item = self.begun_call(index, call)
        if "input" not in item:
            return {**item, "arguments": call.arguments, "status": "completed"}
        text = msgspec.json.decode(call.arguments).get(CUSTOM_INPUT)
        if not isinstance(text, str):
            raise EngineError(f"The model called the custom tool {item['name']!r} without its input.")
        return {**item, "input": text, "status": "completed"}

    def built_in(self, call: Call) -> BuiltIn | None:
        """Returns the built-in tool that is called, if it is one: its arguments are no text that could grow."""
        return BUILT_IN.get(self.memo.tools.client_tool(call.name).kind)

    def begun_call(self, index: int, call: Call) -> Item:
        """Returns a call of which nothing but the name is known yet, not one of a built-in tool."""
        tool = self.memo.tools.client_tool(call.name)
        custom = tool.kind == "custom"
        kind, prefix = ("custom_tool_call", "ctc") if custom else ("function_call", "fc")
        named = {"call_id": call.id, "name": tool.name}
        named |= {} if tool.namespace is None else {"namespace": tool.namespace}
        said = {"input" if custom else "arguments": "", "status": "in_progress"}
        return {"id": self.item_id(prefix, index), "type": kind, **named, **said}


def output_text(text: str) -> dict[str, Any]:
    """Returns the content part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_part(text: str, *, summary: bool) -> dict[str, Any]:
    """Returns the part of a reasoning item, as content or as summary."""
    return {"type": "summary_text" if summary else "reasoning_text", "text": text}


def usage_object(usage: AnswerUsage) -> dict[str, Any]:
    """Returns the usage with all its details, on which clients insist."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def text_status(answer: Answer) -> str:
    """Returns the status of the item that was open when an answer ended."""
    return "incomplete" if answer.finish_reason in _INCOMPLETE else "completed"


def whole_response(completion: Mapping[str, Any], response: ResponseObject) -> dict[str, Any]:
    """Returns a chat completion as a response object.

    Raises:
        EngineError: The completion holds no message, or a call that can't be read.
    """
    answer = response.answer()
    texts = answer.feed_whole(completion)
    calls = answer.calls()
    if not calls and texts.keys() <= {REASONING} and text_status(answer) == "completed":
        texts[TEXT] = ""  # a turn without a message looks unfinished to agents
    output: list[Item] = []
    for number, (kind, text) in enumerate(texts.items(), 1):
        status = text_status(answer) if number == len(texts) and not calls else "completed"
        make = response.reasoning if kind == REASONING else response.message
        output.append(make(len(output), text, status))
    for call in calls:
        output.append(response.call(len(output), call))
    return response.ended(answer, output)


def encode_error(failure: Failure, request_id: str) -> tuple[int, bytes]:
    """Returns status and body of an error response, which needs no id: the header `x-request-id` has it."""
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
    """Returns the members of an `error` event, which OpenAI documents side by side and sends in an object. `error`
    comes from `stream_error`.
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


def _param(failure: Failure) -> str | None:
    if failure.param is None:
        return None
    head, dot, rest = failure.param.partition(".")
    return _PARAMS.get(head, head) + dot + rest
