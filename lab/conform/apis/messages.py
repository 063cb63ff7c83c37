"""Anthropic's Messages API as its strictest clients read it: one block open at a time, indices without a gap."""

import json
import re
from collections.abc import Mapping
from typing import Any

from lab.conform.apis.api import Api, Body, events_of
from lab.conform.apis.turn import End, ToolCall, Turn, counted, is_object, mapping, mappings
from lab.conform.client import Reply

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ENDS = {
    "end_turn": End.COMPLETE,
    "stop_sequence": End.COMPLETE,
    "tool_use": End.COMPLETE,
    "max_tokens": End.CUT,
    "model_context_window_exceeded": End.CUT,
    "refusal": End.FILTERED,
}
# The members that blocks hold, by the types of their deltas.
_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def read(reply: Reply) -> Turn:
    """Returns the answer in a response; an error is one, too."""
    turn = Turn()
    whole = reply.json()
    if reply.status != 200:
        turn.fault_unless(mapping(whole).get("type") == "error", "an error in another API's shape")
        turn.fail(mapping(whole).get("error"), "type")
    elif isinstance(whole, dict):
        _read_whole(turn, whole)
    else:
        _StreamReader(turn).read(events_of(reply, turn))
    return turn


def _read_whole(turn: Turn, message: Mapping[str, Any]) -> None:
    _check_head(turn, message)
    usage = mapping(message.get("usage"))
    turn.tokens = _tokens(turn, usage)
    turn.fault_unless(counted(usage.get("input_tokens")), "usage without input_tokens")
    for block in mappings(message.get("content")):
        _take(turn, dict(block))
    _stop(turn, message.get("stop_reason"))


def _check_head(turn: Turn, message: Mapping[str, Any]) -> None:
    turn.id = str(message.get("id") or "")
    turn.fault_unless(bool(turn.id), "a message without an id")
    turn.fault_unless(message.get("type") == "message", "a message of another type")
    turn.fault_unless(message.get("role") == "assistant", "a message of another role")
    turn.fault_unless(isinstance(message.get("model"), str), "a message without its model")
    turn.fault_unless(isinstance(message.get("content"), list), "a message without a list of content")


def _tokens(turn: Turn, usage: Mapping[str, Any], start: Mapping[str, Any] | None = None) -> tuple[int, int]:
    """Returns the tokens of prompt and answer; a stream may tell the prompt's at its start, its end counts more."""
    turn.fault_unless(counted(usage.get("output_tokens")), "usage without output_tokens")
    prompts = [
        sum(
            given[name]
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            if counted(given.get(name))
        )
        for given in (usage, start or {})
    ]
    return next(filter(None, prompts), 0), usage["output_tokens"] if counted(usage.get("output_tokens")) else 0


def _take(turn: Turn, block: Body) -> None:
    """Takes a block that is complete, as content and as what the client sends back."""
    kind = block.get("type")
    if kind == "text":
        turn.text += str(block.get("text"))
    elif kind == "thinking":
        turn.reasoning += str(block.get("thinking"))
        turn.fault_unless(bool(block.get("signature")), "a thinking block without a signature")
    elif kind == "tool_use":
        given = block.get("id")
        turn.fault_unless(isinstance(given, str) and bool(_CALL_ID.fullmatch(given)), f"a call's id is {given!r}")
        turn.fault_unless(isinstance(block.get("input"), dict), "a call whose input is no object")
        arguments = json.dumps(block.get("input"), ensure_ascii=False)
        turn.calls.append(ToolCall(str(given), str(block.get("name")), arguments))
    if kind in _DELTAS:
        turn.echo.append(block)


def _stop(turn: Turn, reason: Any) -> None:
    turn.end = _ENDS.get(reason, End.NONE)
    turn.fault_unless(reason in _ENDS, f"stop_reason {reason!r}")
    if turn.end is End.COMPLETE:
        turn.fault_unless((reason == "tool_use") == bool(turn.calls), f"{len(turn.calls)} calls and {reason}")


class _StreamReader:
    """Reads one stream, event by event."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._started: Mapping[str, Any] | None = None
        self._block: Body | None = None  # the open one
        self._parts: dict[str, str] = {}  # of the open block, by member
        self._index = -1
        self._reason: Any = None
        self._usage: Mapping[str, Any] = {}
        self._over = False

    def read(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        turn = self._turn
        steps = {
            "message_start": self._start,
            "content_block_start": self._open,
            "content_block_delta": self._delta,
            "content_block_stop": self._close,
            "message_delta": self._end,
            "message_stop": self._stop,
            "error": self._error,
        }
        for kind, event in events:
            turn.fault_unless(not self._over, f"{kind} after the end")
            first = self._started is None and kind not in ("message_start", "error", "ping")
            turn.fault_unless(not first, f"{kind} before message_start")
            if kind in steps:  # a client ignores types that it does not know
                steps[kind](event)
        turn.fault_unless(self._over, "the stream has no end")

    def _start(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        turn.fault_unless(self._started is None, "two message_start")
        self._started = mapping(event.get("message"))
        _check_head(turn, self._started)
        turn.fault_unless(self._started.get("content") == [], "message_start with content")
        usage = mapping(self._started.get("usage"))
        both = counted(usage.get("input_tokens"), usage.get("output_tokens"))
        turn.fault_unless(both, "message_start without usage")

    def _open(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        turn.fault_unless(self._block is None, "a block starts while another is open")
        self._index += 1
        turn.fault_unless(event.get("index") == self._index, f"block {event.get('index')} where {self._index} is due")
        self._block = dict(mapping(event.get("content_block")))
        self._parts = {}
        turn.fault_unless(self._block.get("type") in _DELTAS, f"a block of type {self._block.get('type')}")
        if self._block.get("type") == "tool_use":
            turn.fault_unless(self._block.get("input") == {}, "tool_use starts with an input")

    def _delta(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        delta = mapping(event.get("delta"))
        block = self._block
        at_open = block is not None and event.get("index") == self._index
        turn.fault_unless(at_open, "a delta outside its block")
        if block is None:
            return
        member = _DELTAS.get(str(block.get("type")), {}).get(str(delta.get("type")))
        turn.fault_unless(member is not None, f"{delta.get('type')} in a block of type {block.get('type')}")
        if member is not None:
            piece = delta.get(member)
            turn.fault_unless(isinstance(piece, str), f"{delta.get('type')} without its text")
            self._parts[member] = self._parts.get(member, "") + str(piece)

    def _close(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        block, self._block = self._block, None
        turn.fault_unless(block is not None and event.get("index") == self._index, "a stop outside its block")
        if block is None:
            return
        arguments = self._parts.pop("partial_json", "") or "{}"
        if block.get("type") == "tool_use":
            turn.fault_unless(is_object(arguments), f"a call's arguments are {arguments[:60]!r}")
            block["input"] = json.loads(arguments) if is_object(arguments) else arguments
        for member, text in self._parts.items():
            block[member] = str(block.get(member) or "") + text
        _take(turn, block)

    def _end(self, event: Mapping[str, Any]) -> None:
        self._turn.fault_unless(self._block is None, "message_delta while a block is open")
        self._reason = mapping(event.get("delta")).get("stop_reason")
        self._usage = mapping(event.get("usage"))

    def _stop(self, _: Mapping[str, Any]) -> None:
        turn = self._turn
        self._over = True
        turn.tokens = _tokens(turn, self._usage, mapping(mapping(self._started).get("usage")))
        _stop(turn, self._reason)

    def _error(self, event: Mapping[str, Any]) -> None:
        self._over = True
        self._turn.fail(event.get("error"), "type")


def _first(model: str, words: str) -> Body:
    return {"model": model, "max_tokens": 2000, "messages": [{"role": "user", "content": words}]}


def _next(first: Body, turn: Turn, results: Mapping[str, str]) -> Body:
    blocks = [{"type": "tool_result", "tool_use_id": each, "content": text} for each, text in results.items()]
    blocks += [] if results else [{"type": "text", "text": "go on"}]
    echo = [{"role": "assistant", "content": turn.echo}, {"role": "user", "content": blocks}]
    return {**first, "messages": [*first["messages"], *echo]}


def _odd_content(mark: str) -> Mapping[str, Body]:
    def user(*blocks: Body) -> Body:
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": mark}, *blocks]}]}

    tool = MESSAGES.tools[0]
    odd = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {}}]}
    redacted = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "eHg="}]}
    begin = {"role": "user", "content": mark}
    again = {"role": "user", "content": "go on"}
    return {
        "a block of a new type": user({"type": "hologram", "data": {"x": [1]}}),
        "a block without a type": user({"text": "hello"}),
        "a block that is text": {"messages": [{"role": "user", "content": [mark, "hello"]}]},
        "a document": user({"type": "document", "source": {"type": "base64", "media_type": "x/y", "data": "eHg="}}),
        "a result of no call": user({"type": "tool_result", "tool_use_id": "toolu_none", "content": "sunny"}),
        "an answer's block of a new type": {"messages": [begin, odd, again]},
        "sealed thinking of another vendor": {"messages": [begin, redacted, again]},
        "a tool of the vendor": {"tools": [tool, {"type": "web_search_20990101", "name": "web_search"}]},
        "a message of a new role": {"messages": [begin, {"role": "observer", "content": "hello"}]},
    }


def _overflow(turn: Turn) -> bool:
    return turn.code == "invalid_request_error" and bool(
        re.match(r"prompt is too long: \d+ tokens > \d+ maximum", turn.message)
    )


MESSAGES = Api(
    name="messages",
    path="/v1/messages",
    headers=lambda key: {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {}),
    first=_first,
    next=_next,
    read=read,
    tools=({"name": "look_up", "description": "Looks up a city.", "input_schema": {"type": "object"}},),
    forced={"tool_choice": {"type": "tool", "name": "look_up"}},
    thinking={"thinking": {"type": "enabled", "budget_tokens": 1024}},
    instructions="system",
    limit="max_tokens",
    odd_fields={"service_tier": "auto", "context_management": {"edits": []}, "x_new_field": {"a": [1]}},
    odd_content=_odd_content,
    malformed={
        "no messages": {"messages": None},
        "empty messages": {"messages": []},
        "a message that is text": {"messages": ["hello"]},
        "tools that are text": {"tools": "look_up"},
        "a limit that is text": {"max_tokens": "many"},
    },
    overflow=_overflow,
)
