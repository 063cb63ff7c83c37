"""The grammars of DeepSeek V3, R1 and V3.1: sections of calls between special tokens, JSON arguments, no ids.

The table is Kimi K2's with the few rows that differ: text between and behind calls is content, as there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from serve.parsing.json_call import JSON_SPACE
from serve.parsing.kimi_k2 import KimiK2
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import END_OF_TURN, THINK, Prose, Turns, reasoning_table, with_turns

_MARKERS = {
    "<｜tool▁calls▁begin｜>": "section",
    "<｜tool▁calls▁end｜>": "end_section",
    "<｜tool▁call▁begin｜>": "call",
    "<｜tool▁sep｜>": "arguments",
    "<｜tool▁call▁end｜>": "end_call",
    # Results, which a model now and then makes up behind its calls
    "<｜tool▁outputs▁begin｜>": "result",
    "<｜tool▁output▁begin｜>": "result",
    "<｜tool▁output▁end｜>": "result",
    "<｜tool▁outputs▁end｜>": "result",
}
# The same with ASCII signs, as a model, or a proxy that normalises Unicode, may write them.
_MISSPELT = {
    marker.replace("｜", bar).replace("▁", space): kind
    for marker, kind in _MARKERS.items()
    for bar, space in (("|", "▁"), ("｜", "_"), ("|", "_"))
}
_KIND = "function"  # the only kind of call that V3 and R1 know
_NAME = re.compile(r"[^\s<>{}\[\]\"'`|｜:,]+")
_FENCE = re.compile(r"\s*[^\s`]+\s*(?:`{3}\s*(?:json)?\s*)?")


class DeepSeekV3(KimiK2, Turns):
    """V3 and R1; they read V3.1's calls too.

    `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a line break, the arguments as a block of code in backticks, and
    `<｜tool▁call▁end｜>`.
    """

    call_openers: ClassVar[tuple[str, ...]] = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    structural_tag: ClassVar = "deepseek_r1"
    headless: ClassVar[re.Pattern[str]] = re.compile(r"[\w.\-]+\s*\Z")
    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, **_MARKERS, **_MISSPELT, END_OF_TURN: "stop"})
    token_ids: ClassVar[Mapping[int, str]] = {
        128798: "<think>",
        128799: "</think>",
        128806: "<｜tool▁calls▁begin｜>",
        128807: "<｜tool▁calls▁end｜>",
        128808: "<｜tool▁call▁begin｜>",
        128809: "<｜tool▁call▁end｜>",
        128814: "<｜tool▁sep｜>",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._markup = 0  # pieces of the call in front of its arguments
        self._damaged = False  # the fence around them is

    def open_arguments(self, raw: str) -> State:
        """Takes the separator behind V3's kind of a call, or behind V3.1's name."""
        header = "".join(self._header).strip()
        self._trailing = JSON_SPACE
        self._damaged = False
        if header != _KIND or header in self.tools:
            state = super().open_arguments(raw)
            self._markup = len(self._raw)
            return state
        self._raw.append(raw)
        self._header = []
        return State.NAME

    def read_name(self, raw: str) -> State | None:
        """Reads a name, and a fence, up to the JSON in it."""
        before, brace, behind = raw.partition("{")
        if self.is_endless(self._begin, before):
            self._raw.append(raw)
            return self._no_call()
        self._raw.append(before)
        self._header.append(before)
        if not brace:
            return None
        header = "".join(self._header)
        self._header = header.split()[:1]
        self._damaged = _FENCE.fullmatch(header) is None
        self._markup = len(self._raw)
        self._trailing = JSON_SPACE + "`"
        state = self._begin_arguments("".join(self._header).strip())
        self.read_arguments(brace + behind)
        return state

    def _id(self, header: str, name: str) -> str:
        return f"call_{self.out.calls}"

    def _name(self, id: str) -> str | None:
        self._meant = self.tools.names.meant_by(id, is_id=False)
        if self._meant:
            return self._meant[0] if len(self._meant) == 1 else None
        return id if _NAME.fullmatch(id) else None

    def _infer(self, raw: str) -> bool:
        """Names a call whose name is missing, or may mean several tools; any other name that is none is damage."""
        named = "".join(self._header).strip() and not self._meant
        if named or not "".join(self._unnamed or ()).strip(JSON_SPACE):
            self.out.violation("unresolved_call", self._begin, raw, hidden=True)
            return False
        return super()._infer(raw)

    def _finish_call(self, cut: bool = False) -> None:
        markup = [*self._raw[: self._markup], *self._raw[-1:]]
        if self._damaged or any(piece in _MISSPELT for piece in markup):
            index = self.out.calls - 1 if self._unnamed is None else None
            self.out.violation("drifted_marker", self._begin, "".join(self._raw), index)
        super()._finish_call(cut)

    table: ClassVar[Mapping[State, Row]] = with_turns(
        {
            **KimiK2.table,
            State.HEADER: replace(
                KimiK2.table[State.HEADER], on={**KimiK2.table[State.HEADER].on, "arguments": open_arguments}
            ),
            State.NAME: replace(
                KimiK2.table[State.HEADER],
                text=read_name,
                on={kind: action for kind, action in KimiK2.table[State.HEADER].on.items() if kind != "arguments"},
            ),
        },
        also={"result": Prose.stray},
    )
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("section", "call")


class DeepSeekV31(DeepSeekV3):
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`; V3's calls are read too."""

    structural_tag: ClassVar = "deepseek_v3_1"
