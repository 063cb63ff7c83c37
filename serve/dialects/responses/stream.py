"""The events of a streamed response: one item open at a time, one terminal event, no gap in the sequence numbers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from serve.dialects.answer import REASONING, TEXT, Call
from serve.dialects.dialect import Encoder
from serve.dialects.failure import Failure
from serve.dialects.responses.response import (
    Item,
    ResponseObject,
    error_members,
    output_text,
    reasoning_part,
    stream_error,
    text_status,
)
from serve.dialects.responses.tools import CustomText

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


class ResponsesEncoder(Encoder):
    def __init__(self, response: ResponseObject) -> None:
        super().__init__(response.answer())
        self._response = response
        self._summary = response.memo.summary
        self._sequence = 0
        self._output: list[Item] = []
        self._kind = ""  # of the open item; empty if none is open
        self._form = _MESSAGE
        self._texts: list[str] = []  # of the open item
        self._delta_head = self._call_head = b""
        self._grown: list[str] = []  # text of the call that grows
        self._text_of_call: CustomText | None = None  # reads its arguments, where its client gets a text

    def start(self) -> bytes:
        created = self._event("created", {"response": self._response.at("in_progress")})
        return created + self.keep_alive()

    def keep_alive(self) -> bytes:
        """Returns `response.in_progress` with all that has come: OpenAI's JavaScript SDK goes on from what it says."""
        return self._event("in_progress", {"response": self._response.at("in_progress", self._output_so_far())})

    def feed_text(self, kind: str, text: str) -> bytes:
        self._answer.characters += len(text)
        return self._delta(text) if kind == self._kind else self._text(kind, text)

    def finish(self) -> bytes:
        answer = self._answer
        answer.check_ended()
        calls = answer.calls()
        events = [*self._send_calls(calls), self._close("completed" if calls else text_status(answer))]
        if not calls and text_status(answer) == "completed" and all(map(_is_reasoning, self._output)):
            events += (
                self._open(TEXT),
                self._close("completed"),
            )  # agents take a turn without a message for unfinished
        ended = self._response.ended(answer, self._output)
        return b"".join([*events, self._event(ended["status"], {"response": ended})])

    def fail(self, failure: Failure) -> bytes:
        # OpenAI's own API sends both: there are clients that know only one of them.
        error = stream_error(failure)
        said = self._numbered("error", error_members(error))
        failed = self._response.at("failed", self._output, error=error)
        return said + self._event("failed", {"response": failed})

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
        self._delta_head = _head_of(f"response.{self._form.text}.delta", {**place, **self._logprobs})
        added = self._event("output_item.added", {"output_index": index, "item": item})
        return added + self._event(self._form.part_added, {**place, "part": self._part("")})

    def _text(self, kind: str, text: str) -> bytes:
        if self._growing:
            self._late.append((kind, text))
            return b""
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
        item = self._text_item(text, status)
        done = self._event(f"{self._form.text}.done", {**self._place, "text": text, **self._logprobs})
        done += self._event(self._form.part_done, {**self._place, "part": self._part(text)})
        self._kind = ""
        self._texts = []
        return done + self._done(item)

    def _text_item(self, text: str, status: str) -> Item:
        make = self._response.reasoning if self._kind == REASONING else self._response.message
        return make(len(self._output), text, status)

    def _output_so_far(self) -> list[Item]:
        if self._kind:
            return [*self._output, self._text_item("".join(self._texts), "in_progress")]
        return [*self._output, self._call_so_far("in_progress")] if self._growing else self._output

    @property
    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": []} if self._kind == TEXT else {}

    def _part(self, text: str) -> dict[str, Any]:
        return output_text(text) if self._kind == TEXT else reasoning_part(text, summary=self._summary)

    def _grow(self) -> bytes:
        more = self._answer.take_more()
        if self._response.built_in(more) is not None:
            return b""
        begun = b""
        if more.id != self._growing:
            begun = b"".join(self._send_calls(self._answer.calls_before())) + self._close("completed")
            begun += self._begin_call(self._response.begun_call(len(self._output), more))
            self._growing = more.id
            self._grown = []
            self._text_of_call = CustomText() if _is_custom(self._item) else None
        text = more.arguments if self._text_of_call is None else self._text_of_call.feed(more.arguments)
        self._grown.append(text)
        return begun + self._more_arguments(text) if text else begun

    def _send_calls(self, calls: list[Call]) -> list[bytes]:
        """Returns the events of calls that have not been sent, and of the texts that came behind an open one.
        `calls` are all that are complete.
        """
        events = []
        grown, self._growing = self._growing, ""
        rest = calls[self._sent_calls :]
        self._sent_calls = len(calls)
        late, self._late = self._late, []
        if grown and rest and rest[0].id == grown:
            events.append(self._end_call(self._response.call(len(self._output), rest.pop(0))))
        elif grown and (late or rest):  # the limit of tokens has cut it: it has no end, but a place before what follows
            self._output.append(self._call_so_far("incomplete"))
        events += [self._text(kind, text) for kind, text in late]
        if rest:
            events.append(self._close("completed"))
        for call in rest:
            item = self._response.call(len(self._output), call)
            events.append(self._begin_call(item))
            if _streams(item):
                events.append(self._more_arguments(item[_field(item)]))
            events.append(self._end_call(item))
        return events

    def _call_so_far(self, status: str) -> Item:
        return {**self._item, "status": status, _field(self._item): "".join(self._grown)}

    def _begin_call(self, item: Item) -> bytes:
        self._item = item
        self._call_head = _head_of(f"response.{_name(item)}.delta", self._place_of_item())
        added = {**item, "status": "in_progress"} | ({_field(item): ""} if _streams(item) else {})
        return self._event("output_item.added", {"output_index": len(self._output), "item": added})

    def _more_arguments(self, text: str) -> bytes:
        sequence = self._sequence
        self._sequence = sequence + 1
        return b'%b%d,"delta":%b}\n\n' % (self._call_head, sequence, _encode(text))

    def _end_call(self, item: Item) -> bytes:
        """Returns the events that end a call, which agents execute as soon as they read the last of them."""
        if not _streams(item):
            return self._done(item)
        named = {} if _is_custom(item) else {"name": item["name"]}
        done = {**self._place_of_item(), _field(item): item[_field(item)], **named}
        return self._event(f"{_name(item)}.done", done) + self._done(item)

    def _place_of_item(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self._output)}

    def _done(self, item: Item) -> bytes:
        event = self._event("output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)
        return event

    def _event(self, name: str, members: Mapping[str, Any]) -> bytes:
        return self._numbered(f"response.{name}", members)

    def _numbered(self, kind: str, members: Mapping[str, Any]) -> bytes:
        """Returns an event under the next sequence number."""
        event = {"type": kind, **members, "sequence_number": self._sequence}
        self._sequence += 1
        return f"event: {kind}\ndata: ".encode() + _encode(event) + b"\n\n"


def _head_of(name: str, members: Mapping[str, Any]) -> bytes:
    """Returns the beginning of an event that adds to a text, up to its sequence number."""
    return f"event: {name}\ndata: ".encode() + _encode({"type": name, **members})[:-1] + b',"sequence_number":'


def _is_custom(item: Item) -> bool:
    return bool(item["type"] == "custom_tool_call")


def _streams(item: Item) -> bool:
    """Returns whether the arguments of a call are text, with events of their own: not those of a built-in tool."""
    return item["type"] in ("function_call", "custom_tool_call")


def _field(item: Item) -> str:
    """Returns the member in which a call has its arguments."""
    return "input" if _is_custom(item) else "arguments"


def _name(item: Item) -> str:
    """Returns the name of a call's events."""
    return "custom_tool_call_input" if _is_custom(item) else "function_call_arguments"


def _is_reasoning(item: Item) -> bool:
    return bool(item["type"] == "reasoning")
