"""The events of a streamed response: one item open at a time, one terminal event, no gap in the sequence numbers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from serve.dialects.answer import REASONING, TEXT
from serve.dialects.failure import Failure
from serve.dialects.responses.errors import stream_error
from serve.dialects.responses.response import Item, ResponseObject, output_text, reasoning_part, text_status

_encode = msgspec.json.Encoder().encode


class _TextForm(NamedTuple):
    """The events of an item that holds one text.

    Attributes:
        part_added: Its first event after the item's own.
        text: Begins the names of the events with its text.
        part_done: Its last event before the item's own.
        counter: Name of the member that numbers its parts.
    """

    part_added: str
    text: str
    part_done: str
    counter: str


_MESSAGE = _TextForm("content_part.added", "output_text", "content_part.done", "content_index")
_REASONING = _TextForm("content_part.added", "reasoning_text", "content_part.done", "content_index")
_SUMMARY = _TextForm(
    "reasoning_summary_part.added", "reasoning_summary_text", "reasoning_summary_part.done", "summary_index"
)


class ResponsesEncoder:
    """Encodes one stream; see `serve.dialects.dialect.Encoder`.

    Args:
        response: Names the response.
    """

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._summary = response.memo.summary
        self._sequence = 0
        self._answer = response.answer()
        self._output: list[Item] = []
        self._kind = ""  # of the open item; empty if none is open
        self._form = _MESSAGE
        self._texts: list[str] = []  # of the open item
        self._delta_head = b""

    def start(self) -> bytes:
        return self._lifecycle("created", "in_progress") + self.keep_alive()

    def keep_alive(self) -> bytes:
        return self._lifecycle("in_progress", "in_progress")

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        return b"".join([self._text(kind, text) for kind, text in self._answer.feed(chunk)])

    def feed_text(self, kind: str, text: str) -> bytes:
        self._answer.characters += len(text)
        return self._delta(text) if kind == self._kind else self._text(kind, text)

    def finish(self) -> bytes:
        answer = self._answer
        answer.check_ended()
        calls = answer.calls()
        index = len(self._output) + bool(self._kind)
        items = [self._response.call(index + number, call) for number, call in enumerate(calls)]
        events = [self._close("completed" if items else text_status(answer))]
        if not items and text_status(answer) == "completed" and all(map(_is_reasoning, self._output)):
            events += [
                self._open(TEXT),
                self._close("completed"),
            ]  # a turn without a message looks unfinished to agents
        events += map(self._whole_call, items)
        ended = self._response.ended(answer, self._output)
        return b"".join([*events, self._event(ended["status"], {"response": ended})])

    def fail(self, failure: Failure) -> bytes:
        failed = self._response.at("failed", self._output, error=stream_error(failure))
        return self._event("failed", {"response": failed})

    def _open(self, kind: str) -> bytes:
        index = len(self._output)
        self._kind = kind
        if kind == REASONING:
            self._form = _SUMMARY if self._summary else _REASONING
            item = self._response.reasoning(index, None, "in_progress")
        else:
            self._form = _MESSAGE
            item = self._response.message(index, None, "in_progress")
        place = self._place = {"item_id": item["id"], "output_index": index, self._form.counter: 0}
        name = f"response.{self._form.text}.delta"
        head = {"type": name, **place, **self._logprobs}
        self._delta_head = f"event: {name}\ndata: ".encode() + _encode(head)[:-1] + b',"sequence_number":'
        added = self._event("output_item.added", {"output_index": index, "item": item})
        return added + self._event(self._form.part_added, {**place, "part": self._part("")})

    def _text(self, kind: str, text: str) -> bytes:
        begun = self._close("completed") + self._open(kind) if kind != self._kind else b""
        return begun + self._delta(text)

    def _delta(self, text: str) -> bytes:
        """Returns the event of a piece of text: by far the most frequent, so it is put together from bytes."""
        self._texts.append(text)
        sequence = self._sequence
        self._sequence = sequence + 1
        return b'%b%d,"delta":%b}\n\n' % (self._delta_head, sequence, _encode(text))

    def _close(self, status: str) -> bytes:
        """Ends the open item, if there is one."""
        if not self._kind:
            return b""
        text = "".join(self._texts)
        index = len(self._output)
        make = self._response.reasoning if self._kind == REASONING else self._response.message
        item = make(index, text, status)
        done = self._event(f"{self._form.text}.done", {**self._place, "text": text, **self._logprobs})
        done += self._event(self._form.part_done, {**self._place, "part": self._part(text)})
        self._kind = ""
        self._texts = []
        return done + self._done(item)

    @property
    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": []} if self._kind == TEXT else {}

    def _part(self, text: str) -> dict[str, Any]:
        return output_text(text) if self._kind == TEXT else reasoning_part(text, summary=self._summary)

    def _whole_call(self, item: Item) -> bytes:
        """Returns the events of a call, which agents execute as soon as they read the last of them."""
        custom = item["type"] == "custom_tool_call"
        field = "input" if custom else "arguments"
        name = "custom_tool_call_input" if custom else "function_call_arguments"
        place = {"item_id": item["id"], "output_index": len(self._output)}
        added = {**item, field: "", "status": "in_progress"}
        events = [
            self._event("output_item.added", {"output_index": place["output_index"], "item": added}),
            self._event(f"{name}.delta", {**place, "delta": item[field]}),
            self._event(f"{name}.done", {**place, field: item[field], **({} if custom else {"name": item["name"]})}),
            self._done(item),
        ]
        return b"".join(events)

    def _done(self, item: Item) -> bytes:
        event = self._event("output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)
        return event

    def _lifecycle(self, name: str, status: str) -> bytes:
        return self._event(name, {"response": self._response.at(status)})

    def _event(self, name: str, members: Mapping[str, Any]) -> bytes:
        """Returns an event under the next sequence number."""
        kind = f"response.{name}"
        event = {"type": kind, **members, "sequence_number": self._sequence}
        self._sequence += 1
        return f"event: {kind}\ndata: ".encode() + _encode(event) + b"\n\n"


def _is_reasoning(item: Item) -> bool:
    return bool(item["type"] == "reasoning")
