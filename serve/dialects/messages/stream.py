"""A chat stream to the events of a Messages stream: one block open at a time, indices without a gap, one end."""

from collections.abc import Mapping
from typing import Any

import msgspec

from serve.dialects.answer import REASONING, TEXT, Answer, Call
from serve.dialects.dialect import Encoder, Identity
from serve.dialects.failure import Failure
from serve.dialects.messages.request import MessagesMemo
from serve.dialects.messages.response import client_calls, empty_message, error_of, stop_of, tool_use, usage_of
from serve.dialects.messages.tools import COMPUTER
from serve.dialects.sealed_reasoning import seal

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_BLOCKS: dict[str, dict[str, Any]] = {
    TEXT: {"type": "text", "text": ""},
    REASONING: {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {TEXT: ("text_delta", "text"), REASONING: ("thinking_delta", "thinking")}
_END = b"}}\n\n"
_encode_json = msgspec.json.Encoder().encode


class StreamEncoder(Encoder):
    def __init__(self, memo: MessagesMemo, identity: Identity) -> None:
        super().__init__(Answer(memo.taken_ids, identity.request_id))
        self._memo = memo
        self._identity = identity
        self._blocks = 0
        self._open: str | None = None
        self._prefix = b""
        self._thought: list[str] = []

    def start(self) -> bytes:
        """Returns `message_start`. Its usage is estimated, because no engine has counted yet and there are clients that
        read the prompt's tokens only here.
        """
        usage = {**usage_of(self._answer, self._memo), "output_tokens": 0}
        return _event("message_start", {"message": {**empty_message(self._identity, []), "usage": usage}})

    def feed_text(self, kind: str, text: str) -> bytes:
        self._answer.characters += len(text)
        if kind == TEXT == self._open:
            return self._prefix + _encode_json(text) + _END
        return self._text(kind, text)

    def keep_alive(self) -> bytes:
        return _PING

    def finish(self) -> bytes:
        self._answer.check_ended()
        calls = client_calls(self._answer.calls(), self._memo)
        events = [*self._send_calls(calls), self._close()]
        if not self._blocks:
            events += (self._begin(TEXT), self._close())
        end: dict[str, Any] = {
            "delta": stop_of(self._answer, calls, self._memo, self._identity),
            "usage": usage_of(self._answer, self._memo),
        }
        if self._answer.specgate is not None:
            end["specgate"] = self._answer.specgate
        events += (_event("message_delta", end), _event("message_stop", {}))
        return b"".join(events)

    def fail(self, failure: Failure) -> bytes:
        """Returns an `error` event, after which nothing may follow."""
        _, body = error_of(failure)
        return _event("error", body)

    def _text(self, kind: str, text: str) -> bytes:
        if self._growing:
            self._late.append((kind, text))
            return b""
        if kind == REASONING:
            if not self._memo.thinking:
                return b""
            self._thought.append(text)
        begun = self._begin(kind) if kind != self._open else b""
        if kind == REASONING and self._memo.omitted:
            return begun
        return begun + self._prefix + _encode_json(text) + _END

    def _begin(self, kind: str) -> bytes:
        """Closes the open block and begins one of text or reasoning."""
        closed = self._close()
        index = self._blocks
        self._blocks += 1
        self._open = kind
        delta, member = _DELTAS[kind]
        head = f'{{"type":"content_block_delta","index":{index},"delta":{{"type":"{delta}","{member}":'
        self._prefix = b"event: content_block_delta\ndata: " + head.encode()
        return closed + _event("content_block_start", {"index": index, "content_block": _BLOCKS[kind]})

    def _close(self) -> bytes:
        """Ends the open block, if one is."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        index = self._blocks - 1
        signature = b""
        if kind == REASONING:
            delta = {"type": "signature_delta", "signature": seal("".join(self._thought))}
            signature = _event("content_block_delta", {"index": index, "delta": delta})
            self._thought = []
        return signature + _event("content_block_stop", {"index": index})

    def _grow(self) -> bytes:
        more = self._answer.take_more()
        if self._memo.toolset and more.name == COMPUTER:
            return b""  # the name of its block is one of its arguments
        begun = b""
        if more.id != self._growing:
            before = client_calls(self._answer.calls_before(), self._memo)
            begun = b"".join(self._send_calls(before)) + self._begin_call(more)
            self._growing = more.id
        return begun + self._more_arguments(more.arguments)

    def _send_calls(self, calls: list[Call]) -> list[bytes]:
        """Returns the events of calls that have not been sent, and of the texts that came behind an open one.
        `calls` are all that are complete.
        """
        events = []
        grown, self._growing = self._growing, ""
        if grown:
            events.append(self._end_call())
        late, self._late = self._late, []
        events += [self._text(kind, text) for kind, text in late]
        rest = [call for call in calls[self._sent_calls :] if call.id != grown]
        self._sent_calls = len(calls)
        return [*events, self._close(), *map(self._call, rest)]

    def _call(self, call: Call) -> bytes:
        return self._begin_call(call) + self._more_arguments(call.arguments) + self._end_call()

    def _begin_call(self, call: Call) -> bytes:
        self._blocks += 1
        return _event("content_block_start", {"index": self._blocks - 1, "content_block": tool_use(call, {})})

    def _more_arguments(self, arguments: str) -> bytes:
        delta = {"type": "input_json_delta", "partial_json": arguments}
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _end_call(self) -> bytes:
        return _event("content_block_stop", {"index": self._blocks - 1})


def _event(kind: str, members: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode_json({"type": kind, **members}) + b"\n\n"
