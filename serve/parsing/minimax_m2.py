"""The grammar of MiniMax-M2, M2.1, M2.5 and M2.7: calls in tags with names as attributes, several in one block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import THINK, reasoning_row
from serve.parsing.qwen3_coder import Qwen3Coder
from serve.parsing.tool_call_block import Block

# A tag as the model writes it; others in a value, with more attributes or without content, are text.
_PARAMETER = re.compile(r"""<parameter name=\s*(?:"[^"]*"|'[^']*'|[^\s"'/]+)\s*>""")


class MiniMaxM2(Qwen3Coder):
    """`<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke></minimax:tool_call>`.

    Qwen3-Coder's format with other tags, so that its table is the base of this one. Values are verbatim, and end tags
    that are missing are reported: a call that speculation has damaged looks like that. Where a value ends: see
    `xml_call.py`; which JSON type it gets: `values.py`.
    """

    call_openers: ClassVar = ("<minimax:tool_call>",)
    structural_tag: ClassVar = "minimax"
    newlines_behind_reasoning: ClassVar = 2
    newlines_before_calls: ClassVar = 1
    verbatim: ClassVar = True
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,
            "<minimax:tool_call>": "block",
            "</minimax:tool_call>": "end_block",
            "<invoke name=…": "function",
            "</invoke>": "end_function",
            "<parameter name=…": "parameter",
            "</parameter>": "end_parameter",
            "</parameter…": "drifted",
            "</parameter\n": "drifted",
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {
        200051: "</think>",
        200052: "<minimax:tool_call>",
        200053: "</minimax:tool_call>",
    }

    def next_parameter_in_value(self, raw: str) -> State | None:
        """Takes a tag of a parameter in a value: the next one, if the end tag is missing, or letters of the value."""
        if not _PARAMETER.fullmatch(raw):
            self.keep(raw)
            return None
        if self.has_opened("function", "block"):
            self.tag_in_value(raw)
            return None
        state = self.parameter_in_value(raw)
        if state is not None:
            self._lacks_end(raw)
        return state

    def close_value(self) -> State:
        """Takes the tag held back as real, and reports a value in which another tag was opened and not closed."""
        self._odd |= self.has_opened()
        if self._candidate in self.implied:
            self.report("drifted_marker", self._held_at, self._held[0])
        return super().close_value()

    def no_arguments_nor_end(self, raw: str) -> State:
        """Takes the end of the block right after the name."""
        state = self.no_arguments(raw)
        self._lacks_end(raw)
        return state

    def end_object_nor_call(self, raw: str) -> State:
        """Takes the end of the block in place of `</invoke>`, behind arguments as one object."""
        self._lacks_end(raw)
        return self.end_object(raw)

    def end_block_only(self, raw: str) -> State:
        """Takes the end of the block in place of `</invoke>`."""
        self._lacks_end(raw)
        return self.end_function_and_block(raw)

    def cut_block_behind(self, raw: str) -> State:
        """Ends the output behind a call whose block is still open."""
        self.out.violation("unfinished_call", self.position, "")
        return State.CONTENT

    def cut_content(self, raw: str) -> None:
        """Ends the output in text behind a call whose block is still open."""
        if self._unclosed:
            self.out.violation("unfinished_call", self.position, "")

    def _lacks_end(self, raw: str) -> None:
        self.report("drifted_marker", self.position, raw)

    _of_qwen: ClassVar = Qwen3Coder.table
    table: ClassVar[Mapping[State, Row]] = {
        **_of_qwen,
        State.REASONING: reasoning_row({"block": Block.open_block}),
        State.CONTENT: replace(_of_qwen[State.CONTENT], end=cut_content),
        State.FUNCTION: _of_qwen[State.FUNCTION].but(end_block=no_arguments_nor_end),
        State.ARGUMENTS: _of_qwen[State.ARGUMENTS].but(end_block=end_object_nor_call),
        State.VALUE: _of_qwen[State.VALUE].but(parameter=next_parameter_in_value),
        State.PARAMETERS: _of_qwen[State.PARAMETERS].but(end_block=end_block_only),
        State.AFTER: replace(_of_qwen[State.AFTER], end=cut_block_behind),
    }
