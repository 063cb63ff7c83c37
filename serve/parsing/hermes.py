"""The grammar of Qwen3 (Hermes): one JSON object with name and arguments in each `<tool_call>`."""

from __future__ import annotations

import json
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


class Hermes(Block):
    """`<tool_call>{"name": "f", "arguments": {…}}</tool_call>`; the arguments stream as they were written."""

    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, "<tool_call>": "block", "</tool_call>": "end_block"})
    token_ids: ClassVar[Mapping[int, str]] = QWEN_IDS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._envelope = Envelope()
        self._started = False

    def begin_object(self, raw: str) -> State | None:
        """Reads what follows `<tool_call>`: an object, or prose."""
        space = len(raw) - len(raw.lstrip())
        if raw[space : space + 1] != "{":
            return self.not_a_call(raw)
        self.keep_space(raw)
        return self._read_object(raw, space)

    def read(self, raw: str) -> State:
        envelope = self._envelope
        end, text = envelope.feed(raw)
        inside = raw if end < 0 else raw[:end]
        self.raw.append(inside)
        if envelope.name and envelope.opened and not self._started:
            self._start()
        if text and self._started:
            self.out.arguments(text)
        self.in_string = envelope.in_string
        if end < 0:
            return State.ENVELOPE
        state = self._finish()
        if end == len(raw):
            return state
        self._go(state)
        return self._read_on(raw, end)

    def _read_object(self, raw: str, place: int) -> State:
        """Reads an object that begins in the middle of a token."""
        self._envelope = Envelope()
        self._started = False
        self.position += place
        state = self.read(raw[place:])
        self.position -= place
        return state

    def _read_on(self, raw: str, place: int) -> State:
        """Hands the rest of a token to the state at hand."""
        self.position += place
        state = self._row.text(self, raw[place:])
        self.position -= place
        return state or self.state

    def next_object(self, raw: str) -> State | None:
        """Reads what follows an object: another one, or text."""
        space = len(raw) - len(raw.lstrip())
        if raw[space : space + 1] != "{":
            return self.write_behind(raw)
        if space:
            self.out.content(raw[:space])
        self.begin_call(State.CONTENT, self.position + space)
        return self._read_object(raw, space)

    def cut_object(self, raw: str) -> State:
        """Ends a call where a marker, or the end of the output, comes inside its object."""
        if self._started:
            self.out.end_call(self.begin, "".join(self.raw), "unfinished_call")
            self.raw = []
        else:
            self.enter_call()
            self.release("malformed_call" if raw else "unfinished_call")
        self.in_string = False
        return State.CONTENT

    def cut_by_next(self, raw: str) -> State:
        self.cut_object(raw)
        self.begin_call(State.CONTENT, self.position, raw)
        return State.OPENED

    def _start(self) -> None:
        self.enter_call()
        self._started = True
        self.out.start_call(f"call_{self.out.calls}", self._envelope.name)

    def _finish(self) -> State:
        """Ends a call whose object is complete."""
        envelope = self._envelope
        raw = "".join(self.raw)
        whole = read_object(raw[raw.find("{") :])
        fault: ViolationKind | None = None if whole is not None else "malformed_call"
        self.in_string = False
        if not envelope.name or (whole is None and not self._started):
            self.enter_call()
            self.release("malformed_call")
            return State.AFTER
        if not self._started:
            self._start()
            self.out.arguments(self._late_arguments(whole or {}))
        if whole is not None:
            self._report_extra_keys(whole, raw)
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
