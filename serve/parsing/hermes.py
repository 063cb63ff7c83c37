"""The grammar of Qwen3 (Hermes): one JSON object with name and arguments in each `<tool_call>`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.arguments import read_object
from serve.parsing.envelope import Envelope
from serve.parsing.events import ViolationKind
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import QWEN_IDS, Block

_KEYS = {"name", "arguments", "parameters"}
_SPACE = re.compile(r"\s*")


def _end_of_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None  # the pattern matches the empty text
    return match.end()


class Hermes(Block):
    """`<tool_call>{"name": "f", "arguments": {…}}</tool_call>`; the arguments stream as they were written."""

    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    structural_tag: ClassVar[str | None] = "hermes"
    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, "<tool_call>": "block", "</tool_call>": "end_block"})
    token_ids: ClassVar[Mapping[int, str]] = QWEN_IDS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._envelope = Envelope()
        self._started = False

    def begin_object(self, raw: str) -> State | None:
        """Reads what follows `<tool_call>`: an object, or prose."""
        start = _end_of_space(raw, 0)
        if not raw.startswith("{", start):
            return self.not_a_call(raw)
        self.keep_space(raw)
        self._envelope = Envelope()
        self._started = False
        self.out.by_tags = False
        return self._read(raw, start)

    def read(self, raw: str) -> State:
        """Reads on inside an object."""
        return self._read(raw, 0)

    def next_object(self, raw: str) -> State | None:
        """Reads what follows an object: another one, or text."""
        start = _end_of_space(raw, 0)
        if not raw.startswith("{", start):
            return self.write_behind(raw)
        self._begin_next(raw, 0, start)
        return self._read(raw, start)

    def _read(self, raw: str, start: int) -> State:
        """Reads a token from `start` on, which lies in an object: to the end of it, and of all objects behind it."""
        end, text = self._envelope.feed(raw, start)
        while end >= 0:
            self._take(raw[start:end], text)
            state = self._finish()
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
        self._envelope = Envelope()
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
        if self._started:
            self.out.end_call(self.begin, "".join(self.raw), "unfinished_call")
            self.raw = []
        else:
            self.enter_call()
            self.release("malformed_call" if raw else "unfinished_call")
            if self.lexicon.kind(raw) == "end_block":
                self.close_block(raw)
        self.in_string = False
        return State.CONTENT

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
        envelope = self._envelope
        raw = "".join(self.raw)
        whole = read_object(raw[raw.find("{") :])
        self.in_string = False
        if not envelope.name or (whole is None and not self._started):
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
        self.out.end_call(self.begin, raw, fault)
        self.raw = []
        return State.AFTER

    def _report_extra_keys(self, whole: dict[str, object], raw: str) -> None:
        """Reports keys of the object other than name and arguments."""
        doubled = len(self._envelope.keys) > len(whole) or {"arguments", "parameters"} <= whole.keys()
        if doubled or not whole.keys() <= _KEYS:
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
            on={"block": Block.open_block, "end_block": Block.close_block, "end_think": Prose.late_stop},
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
