"""Streams of the Responses API as its strictest clients read them; and the response object at their end."""

from collections.abc import Mapping
from typing import Any

from lab.conform.apis.turn import End, ToolCall, Turn, counted, is_object, mapping, mappings

_TERMINALS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_INCOMPLETE = {"max_output_tokens": End.CUT, "content_filter": End.FILTERED}
_REQUIRED = ("id", "created_at", "model", "output", "parallel_tool_calls", "tool_choice", "tools")
_DETAILS = (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens"))
# The text of an item by the beginning of its events: the item's type, the member of `.done` that holds it.
_TEXTS = {
    "response.output_text": ("message", "text"),
    "response.refusal": ("message", "refusal"),
    "response.reasoning_text": ("reasoning", "text"),
    "response.reasoning_summary_text": ("reasoning", "text"),
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}
_PART_OF = {"message": "response.content_part", "reasoning": "response.content_part"}
_SAME = ("id", "type", "call_id", "name")


def read_response(turn: Turn, response: Mapping[str, Any]) -> None:
    """Takes a response object that is at its end."""
    turn.id = str(response.get("id") or "")
    missing = [name for name in _REQUIRED if name not in response]
    turn.fault_unless(not missing, f"a response without {', '.join(missing)}")
    turn.fault_unless(response.get("object") == "response", "a response that is no `response`")
    status = response.get("status")
    if status == "failed":
        turn.fail(response.get("error"), "code")
        return
    turn.fault_unless(response.get("error") is None, f"a response {status} with an error")
    if status == "completed":
        turn.end = End.COMPLETE
    else:
        reason = str(mapping(response.get("incomplete_details")).get("reason"))
        turn.end = _INCOMPLETE.get(reason, End.NONE)
        turn.fault_unless(turn.end is not End.NONE, f"a response {status} for the reason {reason!r}")
    _read_usage(turn, mapping(response.get("usage")))
    items = mappings(response.get("output"))
    turn.fault_unless(len({item.get("id") for item in items}) == len(items), "two items with one id")
    for item in items:
        _take(turn, item)
    turn.echo = items


def _read_usage(turn: Turn, usage: Mapping[str, Any]) -> None:
    tokens = [usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    turn.fault_unless(counted(*tokens), "usage without its tokens")
    if counted(*tokens):
        turn.tokens = (usage["input_tokens"], usage["output_tokens"])
        turn.fault_unless(usage["total_tokens"] == sum(turn.tokens), "usage whose total is no sum")
    for details, name in _DETAILS:
        turn.fault_unless(counted(mapping(usage.get(details)).get(name)), f"usage without {details}.{name}")


def _take(turn: Turn, item: Mapping[str, Any]) -> None:
    kind = item.get("type")
    status = item.get("status")
    turn.fault_unless(bool(item.get("id")), f"an item {kind} without an id")
    if kind == "message":
        turn.text += _text_of(item)
        cut = turn.end is End.COMPLETE and status != "completed"
        turn.fault_unless(not cut, f"a message {status} in a response that is completed")
    elif kind == "reasoning":
        turn.reasoning += _text_of(item)
    elif kind == "function_call" and status != "incomplete":
        arguments = item.get("arguments")
        turn.fault_unless(is_object(arguments), f"a call's arguments are {str(arguments)[:60]!r}")
        turn.fault_unless(isinstance(item.get("call_id"), str), "a call without a call_id")
        turn.calls.append(ToolCall(str(item.get("call_id")), str(item.get("name")), str(arguments)))
    elif kind == "custom_tool_call":
        turn.calls.append(ToolCall(str(item.get("call_id")), str(item.get("name")), str(item.get("input"))))
    elif kind == "function_call":
        turn.fault_unless(turn.end is not End.COMPLETE, "a call incomplete in a response that is completed")


def _text_of(item: Mapping[str, Any]) -> str:
    """Returns an item's content, or its summary if it has no content."""
    for parts in (mappings(item.get("content")), mappings(item.get("summary"))):
        if parts:
            return "".join(str(part.get("text", part.get("refusal", ""))) for part in parts)
    return ""


class _OpenItem:
    """An item between `added` and `done`; `text` is what its deltas add up to."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.item = item
        self.text = ""
        self.parts = 0
        self.open_part = False


class StreamReader:
    """Reads one stream, event by event.

    Args:
        turn: Gets the answer.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._id: Any = None
        self._added = 0
        self._open: dict[int, _OpenItem] = {}
        self._done: dict[int, Mapping[str, Any]] = {}
        self._over = False
        self._failing = False

    def read(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Reads all events."""
        turn = self._turn
        numbers = [event.get("sequence_number") for _, event in events]
        turn.fault_unless(numbers == list(range(len(events))), "sequence numbers with a gap")
        for position, (kind, event) in enumerate(events):
            turn.fault_unless(not self._over, f"{kind} after the end")
            turn.fault_unless(not self._failing or kind == "response.failed", f"{kind} after `error`")
            turn.fault_unless((kind == "response.created") == (position == 0), "response.created is not the first")
            turn.fault_unless(kind == "error" or "error" not in event, f"{kind} with an error in it")
            self._event(kind, event)
        turn.fault_unless(
            self._over, "`error` in place of response.failed" if self._failing else "the stream has no end"
        )

    def _event(self, kind: str, event: Mapping[str, Any]) -> None:
        head, _, last = kind.rpartition(".")
        if kind in _TERMINALS:
            self._end(kind, mapping(event.get("response")))
        elif "response" in event:
            self._lifecycle(kind, mapping(event["response"]))
        elif kind == "response.output_item.added":
            self._add(event)
        elif kind == "response.output_item.done":
            self._finish(event)
        elif head in _TEXTS:
            self._text(head, last, event)
        elif kind.endswith("_part.added") or kind.endswith("_part.done"):
            self._part(last, event)
        elif kind == "error":
            self._failing = True
            self._turn.fail(event.get("error") or event, "code")

    def _lifecycle(self, kind: str, response: Mapping[str, Any]) -> None:
        turn = self._turn
        if self._id is None:
            self._id = response.get("id")
            turn.fault_unless(isinstance(self._id, str) and bool(self._id), "a response without an id")
            missing = [name for name in _REQUIRED if name not in response]
            turn.fault_unless(not missing, f"a response without {', '.join(missing)}")
        turn.fault_unless(response.get("id") == self._id, f"{kind} under another id")
        under_way = response.get("status") in ("in_progress", "queued")
        turn.fault_unless(under_way, f"{kind} of a response {response.get('status')}")

    def _add(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        item = mapping(event.get("item"))
        turn.fault_unless(event.get("output_index") == self._added, "output indices with a gap")
        turn.fault_unless(bool(item.get("id")), f"an item {item.get('type')} without an id")
        turn.fault_unless(item.get("status") in ("in_progress", None), f"an item added {item.get('status')}")
        self._open[self._added] = _OpenItem(item)
        self._added += 1

    def _at(self, event: Mapping[str, Any]) -> _OpenItem | None:
        """Returns the item that an event is about."""
        index = event.get("output_index")
        found = self._open.get(index) if isinstance(index, int) else None
        named = found is not None and event.get("item_id") == found.item.get("id")
        self._turn.fault_unless(named, f"{event.get('type')} outside its item")
        return found if named else None

    def _part(self, last: str, event: Mapping[str, Any]) -> None:
        found = self._at(event)
        if found is None:
            return
        number = event.get("content_index", event.get("summary_index"))
        if last == "added":
            self._turn.fault_unless(not found.open_part and number == found.parts, "parts out of order")
            found.parts += 1
            found.open_part = True
        else:
            self._turn.fault_unless(found.open_part and number == found.parts - 1, "a part done that is not open")
            found.open_part = False

    def _text(self, head: str, last: str, event: Mapping[str, Any]) -> None:
        turn = self._turn
        kind, member = _TEXTS[head]
        found = self._at(event)
        if found is None:
            return
        turn.fault_unless(found.item.get("type") == kind, f"{event.get('type')} in an item {found.item.get('type')}")
        in_place = kind not in _PART_OF or found.open_part
        turn.fault_unless(in_place, f"{event.get('type')} outside a part")
        if last == "delta":
            found.text += str(event.get("delta"))
        elif last == "done":
            whole = found.text.endswith(str(event.get(member))) if found.parts > 1 else found.text == event.get(member)
            turn.fault_unless(whole, f"{event.get('type')} differs from its deltas")

    def _finish(self, event: Mapping[str, Any]) -> None:
        turn = self._turn
        item = mapping(event.get("item"))
        index = event.get("output_index")
        found = self._open.pop(index, None) if isinstance(index, int) else None
        turn.fault_unless(found is not None, "an item done that is not open")
        if found is None or not isinstance(index, int):
            return
        self._done[index] = item
        for name in _SAME:
            turn.fault_unless(item.get(name) == found.item.get(name), f"an item whose {name} changes until it is done")
        turn.fault_unless(not found.open_part, "an item done whose part is open")
        text = item.get("arguments", item.get("input")) if "call_id" in item else _text_of(item)
        turn.fault_unless(text == found.text, f"an item {item.get('type')} that differs from its deltas")
        acted_on = item.get("type") == "function_call" and item.get("status") != "incomplete"
        broken = acted_on and not is_object(text)
        turn.fault_unless(not broken, f"a call done with the arguments {str(text)[:60]!r}")

    def _end(self, kind: str, response: Mapping[str, Any]) -> None:
        turn = self._turn
        self._over = True
        turn.fault_unless(response.get("id") == self._id, f"{kind} under another id")
        turn.fault_unless(response.get("status") == _TERMINALS[kind], f"{kind} of a response {response.get('status')}")
        read_response(turn, response)
        if turn.end is not End.ERROR:
            turn.fault_unless(not self._open, f"{kind} while an item is open")
            done = [item for _, item in sorted(self._done.items())]
            turn.fault_unless(mappings(response.get("output")) == done, f"{kind} with other items than were done")
