"""The response object: its output items, its usage and its states; and a whole completion as one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from serve.dialects.answer import REASONING, TEXT, Answer, AnswerUsage, Call
from serve.dialects.dialect import Identity
from serve.dialects.reasoning import seal
from serve.dialects.responses.request import ResponsesMemo
from serve.dialects.responses.tools import CUSTOM_INPUT, TOOL_SEARCH
from serve.errors import EngineError

Item = dict[str, Any]

# Why an answer is incomplete, by the engine's finish reason.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """The parts of the response object that stay the same from `response.created` to the end.

    Args:
        memo: Of the request.
        identity: Names the response and its model.
        created_at: Unix time in seconds.
    """

    memo: ResponsesMemo
    identity: Identity
    created_at: int

    def answer(self) -> Answer:
        """Returns the answer that the response is to hold, still empty."""
        return Answer(self.memo.taken_ids, self.identity.request_id)

    def at(
        self, status: str, output: Iterable[Item] = (), usage: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Returns the object in one state.

        Args:
            status: As the API names it.
            output: The items that are complete.
            usage: Of the whole answer, once it is known.
            more: Further members, which replace those of the same name.
        """
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
        usage = usage_object(answer.usage(self.memo.prompt_bytes))
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
        """Returns a reasoning item; empty as yet if `text` is None."""
        parts = [] if text is None else [reasoning_part(text, summary=self.memo.summary)]
        item: Item = {"id": self.item_id("rs", index), "type": "reasoning", "status": status, "summary": []}
        item["summary" if self.memo.summary else "content"] = parts
        if self.memo.seals:
            item["encrypted_content"] = None if text is None else seal(text)
        return item

    def call(self, index: int, call: Call) -> Item:
        """Returns a complete call in the shape of the client's tool.

        Raises:
            EngineError: The call of a custom tool holds no text.
        """
        item = self.begun_call(index, call)
        if item["type"] == "tool_search_call":
            return {**item, "arguments": msgspec.json.decode(call.arguments), "status": "completed"}
        if "input" not in item:
            return {**item, "arguments": call.arguments, "status": "completed"}
        text = msgspec.json.decode(call.arguments).get(CUSTOM_INPUT)
        if not isinstance(text, str):
            raise EngineError(f"The model called the custom tool {item['name']!r} without its input.")
        return {**item, "input": text, "status": "completed"}

    def begun_call(self, index: int, call: Call) -> Item:
        """Returns a call of which nothing but the name is known yet."""
        tool = self.memo.tools.client_tool(call.name)
        if tool.kind == TOOL_SEARCH:
            named = {"call_id": call.id, "execution": "client", "arguments": {}, "status": "in_progress"}
            return {"id": self.item_id("tsc", index), "type": "tool_search_call", **named}
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

    Args:
        completion: Of the engine or the guard.
        response: Its names.

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
