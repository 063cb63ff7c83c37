"""The grammar of Qwen3 (Hermes): one JSON object with name and arguments in each `<tool_call>`.

`Envelope` decides where the object ends, and which part of it is the arguments, by the brackets and strings that
`json_scanner.py` counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.arguments import read_object
from serve.parsing.events import ViolationKind
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import QWEN_IDS, Block

_ARGUMENTS = ("arguments", "parameters")
_SPACE = re.compile(r"\s*")
_PARTING = re.compile(r"[\s,]*(\]?)")  # what parts the objects of a list, or ends it


def _end_of_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None  # the pattern matches the empty text
    return match.end()


class Envelope:
    """One object `{"name": …, "arguments": {…}}`, keys in any order; the first of them may have another name.

    Args:
        name_key: The key of the tool's name.
        members: Where the object may be something else than a call, the keys that one can have.

    Attributes:
        name: The name, once it is complete.
        opened: True once an arguments object has begun.
        keys: All keys of the object, in order.
        endless: True once a key, or the name, is too long for one, or another key shows that it is no call.
    """

    def __init__(self, name_key: str, members: frozenset[str] | None = None) -> None:
        self.name = ""
        self.opened = False
        self.keys: list[str] = []
        self.endless = False
        self._name_key = name_key
        self._members = members
        self._scanner = JsonScanner()
        self._key = ""
        self._in_value = False
        self._in_arguments = False
        self._string: list[str] | None = None  # a key or a value of the object itself
        self._room = LONGEST_NAME  # for more text up to the next sign, if that is a key or the name
        self._waiting: list[str] = []  # arguments that came before the name

    @property
    def in_string(self) -> bool:
        """True if the text so far ends inside a string."""
        return self._scanner.in_string

    def feed(self, text: str, place: int = 0) -> tuple[int, str]:
        """Reads on, from a place of the next piece. Returns the place after the object's end, or the one where it has
        become endless, or -1 if neither has come; and arguments to pass on, which come once the name is known.
        """
        while place < len(text) and not self.endless:
            start = place
            place = self._scanner.feed(text, start, depth=1)
            ended = place >= 0
            if not ended:
                place = len(text)
            if self._in_arguments:
                self._waiting.append(text[start:place])
                if ended:
                    self._end_arguments()
                continue
            if place - start > self._room and (not self._in_value or self._key == self._name_key):
                self.endless = True
                return start + self._room, self._ready()
            self._room -= place - start
            if self._string is not None:
                self._string.append(text[start:place])
                if ended:
                    self._end_string("".join(self._string)[:-1])
            elif ended:
                self._sign(text[place - 1])
                if self._scanner.depth <= 0:
                    return place, self._ready()
        return place if self.endless else -1, self._ready()

    def _ready(self) -> str:
        if not self.name or not self._waiting:
            return ""
        text = "".join(self._waiting)
        self._waiting = []
        return text

    def _sign(self, sign: str) -> None:
        """Takes a sign of the object itself, or a bracket of a value in it."""
        self._room = LONGEST_NAME
        if sign == '"':
            self._string = []
        elif sign == "{" and self._in_value and self._key in _ARGUMENTS and not self.opened:
            self._in_arguments = True
            self.opened = True
            self._waiting.append(sign)
        elif sign == ":":
            self._in_value = True
        elif sign == ",":
            self._in_value = False

    def _end_arguments(self) -> None:
        self._in_arguments = False
        self._in_value = False
        self._key = ""

    def _end_string(self, raw: str) -> None:
        self._string = None
        if not self._in_value:
            self._key = raw
            self.keys.append(raw)
            begun = self.name and self.opened
            self.endless = self._members is not None and not begun and raw not in self._members
        elif self._key == self._name_key and not self.name:
            try:
                self.name = json.loads(f'"{raw}"', strict=False)
            except ValueError:
                self.name = raw


class Hermes(Block):
    """`<tool_call>{"name": "f", "arguments": {…}}</tool_call>`; the arguments stream as they were written.

    Several objects may stand in one block, one behind the other or in a list.

    Attributes:
        name_key: The key of the tool's name.
        members: The keys that an object may have.
    """

    name_key: ClassVar[str] = "name"
    members: ClassVar[frozenset[str]] = frozenset({"name", *_ARGUMENTS})
    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    structural_tag: ClassVar[str | None] = "hermes"
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,
            "<tool_call>": "block",
            "</tool_call>": "end_block",
            **dict.fromkeys(("</parameter>", "</function>"), "end_other"),
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = QWEN_IDS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._envelope = Envelope(self.name_key)
        self._started = False
        self._listed = False  # the objects of the block stand in a list, which has not ended

    def begin_object(self, raw: str) -> State | None:
        """Reads what follows `<tool_call>`: an object, a list of them, or prose."""
        self._listed = "".join(self.raw).rstrip().endswith("[")
        start = _end_of_space(raw, 0)
        if raw.startswith("[", start) and not self._listed:
            self.raw.append(raw[: start + 1])
            self.position += start + 1
            state = self.begin_object(raw[start + 1 :])
            self.position -= start + 1
            return state
        if not raw.startswith("{", start):
            return self._no_list(raw) if self._listed else self.not_a_call(raw)
        self.keep_space(raw)
        self._envelope = self._new_envelope()
        self._started = False
        self.out.by_tags = False
        return self._read(raw, start)

    def _no_list(self, raw: str) -> State | None:
        """Takes what cannot follow the bracket of a list."""
        raw = self.keep_space(raw)
        return self.back_to_prose(raw, self.fault()) if raw else None

    def read(self, raw: str) -> State:
        """Reads on inside an object."""
        return self._read(raw, 0)

    def next_object(self, raw: str) -> State | None:
        """Reads what follows an object: another one, or text."""
        end = self._end_of_parting(raw, 0)
        if end == len(raw):
            return None
        start = _end_of_space(raw, end)
        if not raw.startswith("{", start):
            return self.write_behind(raw[end:])
        self._begin_next(raw, end, start)
        return self._read(raw, start)

    def other_end(self, raw: str) -> None:
        """Takes the end of another format's call behind an object: text with one that was no call, or one too many."""
        if self.spoiled:
            self.out.content(raw)
        else:
            self.stray(raw)

    def close_list(self, raw: str) -> State:
        """Takes `</tool_call>` behind an object, which ends a list that lacks its bracket, too."""
        self._listed = False
        return self.close_block(raw)

    def cut_list(self, raw: str) -> State:
        """Ends the output behind an object: where its list goes on, further calls are missing."""
        if self._listed:
            self.out.violation("unfinished_call", self.position, "")
        return State.CONTENT

    def _end_of_parting(self, text: str, place: int) -> int:
        """Returns the place behind what parts the objects of a list, and behind its end."""
        if not self._listed:
            return place
        match = _PARTING.match(text, place)
        assert match is not None  # the pattern matches the empty text
        self._listed = not match[1]
        return match.end()

    def _read(self, raw: str, start: int) -> State:
        """Reads a token from `start` on, which lies in an object: to the end of it, and of all objects behind it."""
        end, text = self._envelope.feed(raw, start)
        while end >= 0:
            self._take(raw[start:end], text)
            if self._envelope.endless:
                self._cut("malformed_call")
                self._write(raw[end:])
                return State.CONTENT
            state = self._finish()
            end = self._end_of_parting(raw, end)
            start = _end_of_space(raw, end)
            if not raw.startswith("{", start):
                return (self.write_behind(raw[end:]) or state) if end < len(raw) else state
            self._begin_next(raw, end, start)
            end, text = self._envelope.feed(raw, start)
        self._take(raw[start:], text)
        self.in_string = self._envelope.in_string
        return State.ENVELOPE

    def _begin_next(self, raw: str, end: int, start: int) -> None:
        """Begins another object of the same block."""
        if start > end:
            self.out.content(raw[end:start])
        self.begin_call(State.CONTENT, self.position + start)
        self._envelope = self._new_envelope()
        self._started = False

    def _take(self, inside: str, text: str) -> None:
        """Takes a piece of an object, and what it holds of the arguments."""
        self.raw.append(inside)
        if self._envelope.name and self._envelope.opened and not self._started:
            self._start()
        if text and self._started:
            self.out.arguments(text)

    def cut_object(self, raw: str) -> State:
        """Ends a call where a marker, or the end of the output, comes inside its object."""
        started = self._started
        self._cut("malformed_call" if raw else "unfinished_call")
        if not started and self.lexicon.kind(raw) == "end_block":
            self.close_block(raw)
        return State.CONTENT

    def _cut(self, fault: ViolationKind) -> None:
        """Ends a call inside its object; the fault is that of one without a name."""
        if self._started:
            self.finish_call("unfinished_call")
        else:
            self.enter_call()
            self.release(fault)
        self.in_string = False

    def cut_by_next(self, raw: str) -> State:
        self.cut_object(raw)
        self.begin_call(State.CONTENT, self.position, raw)
        return State.OPENED

    def _start(self) -> None:
        self.enter_call()
        self.spoiled = False
        self._started = True
        self.out.start_call(f"call_{self.out.calls}", self._envelope.name)

    def _finish(self) -> State:
        """Ends a call whose object is complete."""
        raw = "".join(self.raw)
        whole = read_object(raw[raw.find("{") :])
        self.in_string = False
        if not self._is_call(whole):
            self.enter_call()
            self.release("malformed_call")
            return State.AFTER
        if not self._started:
            self._start()
            self.out.arguments(self._late_arguments(whole or {}))
        fault: ViolationKind | None = None
        if whole is not None:
            self._report_extra_keys(whole, raw)
        elif read_object(self.out.current_arguments()) is not None:
            fault = "malformed_call"  # the object around good arguments is none
        self.finish_call(fault)
        return State.AFTER

    def _is_call(self, whole: dict[str, object] | None) -> bool:
        """Returns whether an object that has ended is a call, given what it holds; None if it is no JSON."""
        return bool(self._envelope.name) and (whole is not None or self._started)

    def _new_envelope(self) -> Envelope:
        return Envelope(self.name_key)

    def _report_extra_keys(self, whole: dict[str, object], raw: str) -> None:
        """Reports keys that the object should not have."""
        doubled = len(self._envelope.keys) > len(whole) or {"arguments", "parameters"} <= whole.keys()
        if doubled or not whole.keys() <= self.members:
            self.out.violation("stray_text", self.begin, raw, self.out.calls - 1, hidden=doubled)

    @staticmethod
    def _late_arguments(whole: dict[str, object]) -> str:
        """Returns arguments that are no object: none, or JSON once more inside a string."""
        value = whole.get("arguments", whole.get("parameters"))
        if value is None or value == "":
            return "{}"
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row({"block": Block.open_block}),
        State.CONTENT: content_row({"block": Block.open_block, "end_block": Block.stray_tag}),
        State.OPENED: Row(
            text=begin_object,
            on={"end_block": Block.empty_block, "block": Block.reopen_block},
            end=Block.cut_block,
        ),
        State.ENVELOPE: Row(
            text=read, on={"end_block": cut_object, "block": cut_by_next}, end=cut_object, json=True
        ),
        State.AFTER: Row(
            text=next_object,
            on={
                "block": Block.open_block,
                "end_block": close_list,
                "end_other": other_end,
                "end_think": Prose.late_stop,
            },
            end=cut_list,
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
