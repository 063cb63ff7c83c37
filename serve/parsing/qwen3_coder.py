"""The grammar of Qwen3-Coder, 3.5 and 3.6, and of Seed-OSS: XML calls whose values the tool's schema turns into JSON.

These models fall back now and then on what others write: one JSON object in the block, or names as attributes. Where a
value ends is decided in `xml_call.py`, which of its newlines are markup and which JSON type it gets in `values.py`; an
object in the block is read as in `hermes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.hermes import Hermes
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import QWEN_IDS, Block
from serve.parsing.xml_call import XmlParameters, XmlValue, value_rows

_OTHER_ENDS = (
    "</function_invocation>",
    "</function_call>",
    "</function_calls>",
    "</tool_calls>",
    "</tools>",
    "</invoke>",
)
_CALLS = {
    "<function=…": "function",
    "<<function=…": "function",  # models double the bracket now and then
    "<function name=…": "named_function",
    "</function>": "end_function",
    "<parameter=…": "parameter",
    "<<parameter=…": "parameter",
    "<parameter name=…": "named_parameter",
    "</parameter>": "end_parameter",
    "</parameter…": "drifted",
    "</parameter\n": "drifted",
    **dict.fromkeys(_OTHER_ENDS, "end_other"),
}
_ATTRIBUTE = re.compile(r"""<\w+ name=\s*(?P<quote>["']?)(?P<name>[^"'<>]+)(?P=quote)""")


def _name(raw: str) -> str:
    """Returns the name of a function, or of a parameter, in its tag."""
    if attribute := _ATTRIBUTE.match(raw):
        return attribute["name"].strip()
    return raw.partition("=")[2][:-1].strip()


class Qwen3Coder(XmlParameters):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    structural_tag: ClassVar[str | None] = "qwen_3_coder"
    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, "<tool_call>": "block", "</tool_call>": "end_block", **_CALLS})
    token_ids: ClassVar[Mapping[int, str]] = QWEN_IDS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._by_attributes = False

    # Up to the first parameter

    def bare_function(self, raw: str) -> State | None:
        """Takes `<function=name>` without `<tool_call>`: a call if there is such a tool."""
        name = _name(raw)
        if name in self.tools:
            self.begin_call(self.state, self.position, raw)
            self._wrapped = False
            self._name = name
            return State.FUNCTION
        if self.state is State.REASONING:
            self.reason(raw)
        else:
            self.write(raw)
        return None

    def function(self, raw: str) -> State:
        """Takes `<function=name>` in a block."""
        self._by_attributes = False
        name = _name(raw)
        if not self.tools.may_be(name):
            return self.malformed(raw)
        self.raw.append(raw)
        self._wrapped = True
        self._name = name
        return State.FUNCTION

    def named_function(self, raw: str) -> State:
        """Takes `<function name="name">` in a block."""
        state = self.function(raw)
        self._by_attributes = True
        return state

    def next_function(self, raw: str) -> State:
        """Takes another function after `</function>`."""
        self.begin_call(State.CONTENT, self.position)
        return self.function(raw)

    def first_parameter(self, raw: str) -> State:
        if not self.tools.may_have(self._name, _name(raw)):
            return self.malformed(raw)
        self.start_by_tags()
        return self.parameter(raw)

    def first_named_parameter(self, raw: str) -> State:
        self._by_attributes = True
        return self.first_parameter(raw)

    def no_arguments(self, raw: str) -> State:
        """Takes `</function>`, or `</tool_call>` in its place, right after the name."""
        self.start_by_tags()
        self.raw.append(raw)
        return self.end_by_tags(self.implied[self.lexicon.kind(raw)])

    # Parameters

    def parameter(self, raw: str) -> State:
        return self.begin_value(_name(raw), raw)

    def parameter_in_value(self, raw: str) -> State | None:
        """Takes the next parameter, if its predecessor's closing tag is missing, or letters of the value."""
        if not self.may_follow(_name(raw)):
            self.tag_in_value(raw)
            return None
        self.end_unclosed_value()
        return self.parameter(raw)

    def named_parameter_in_value(self, raw: str) -> State | None:
        """Takes `<parameter name="key">` in a value: letters of it, unless the call itself is written so."""
        if self._by_attributes:
            return self.parameter_in_value(raw)
        self.keep(raw)
        return None

    def follower(self, kind: str, raw: str) -> str:
        return "parameter" if kind == "named_parameter" and self._by_attributes else super().follower(kind, raw)

    # The end of a call

    def behind(self, raw: str) -> State | None:
        """Takes text after a call: another object, if that was one."""
        return self.write_behind(raw) if self.out.by_tags else self.next_object(raw)

    def surplus_parameter(self, raw: str) -> None:
        """Takes a tag of a parameter right after a call: its last value may have gone on, if that has tags, too."""
        if not self.out.by_tags and self.lexicon.kind(raw) == "end_parameter":
            self.other_end(raw)
            return
        self.out.violation("stray_marker", self.position, raw, hidden=True)

    def end_in_content(self, raw: str) -> None:
        """Takes a closing tag of another format in content: one too many right behind a call, or a word."""
        if self.out.at_call:
            self.stray(raw)
        else:
            self.write(raw)

    def end_function(self, raw: str) -> State:
        self.raw.append(raw)
        return self.end_by_tags(State.AFTER)

    def end_function_and_block(self, raw: str) -> State:
        self.raw.append(raw)
        return self.end_by_tags(State.CONTENT)

    _tags: ClassVar = ("parameter", "end_parameter", "drifted", "end_function", "end_block")
    _parameters: ClassVar = ("parameter", "named_parameter", "end_parameter", "drifted")
    _open: ClassVar = {"block": Block.open_block, "function": bare_function}
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row(_open),
        State.CONTENT: content_row({**dict.fromkeys(_tags, Block.stray_tag), "end_other": end_in_content, **_open}),
        State.OPENED: Row(
            text=Hermes.begin_object,
            on={
                "function": function,
                "named_function": named_function,
                "end_block": Block.empty_block,
                "block": Block.reopen_block,
            },
            end=Block.cut_block,
        ),
        State.FUNCTION: Row(
            text=XmlParameters.object_or_prose,
            on={
                "parameter": first_parameter,
                "named_parameter": first_named_parameter,
                **dict.fromkeys(("end_function", "end_block"), no_arguments),
            },
            end=XmlParameters.cut_function,
        ),
        State.ARGUMENTS: Row(
            text=XmlParameters.read_object,
            on={
                **dict.fromkeys(("end_function", "end_block"), XmlParameters.end_object),
                **dict.fromkeys(("function", "block"), XmlParameters.end_object_at_next),
            },
            end=XmlParameters.cut_arguments,
            json=True,
        ),
        **value_rows(
            {
                "parameter": parameter_in_value,
                "named_parameter": named_parameter_in_value,
                **dict.fromkeys(("function", "block"), XmlValue.tag_in_value),
                **dict.fromkeys(("end_parameter", "drifted", "end_function", "end_block"), XmlValue.maybe_close),
            }
        ),
        State.PARAMETERS: Row(
            text=XmlParameters.space_between,
            on={
                **dict.fromkeys(("parameter", "named_parameter"), parameter),
                "end_function": end_function,
                "end_block": end_function_and_block,
            },
            end=XmlParameters.cut_call,
        ),
        State.ENVELOPE: Hermes.table[State.ENVELOPE],
        State.AFTER: Row(
            text=behind,
            on={
                **dict.fromkeys(("end_function", "end_other"), Hermes.other_end),
                **dict.fromkeys(_parameters, surplus_parameter),
                "function": next_function,
                "block": Block.open_block,
                "end_block": Hermes.close_list,
                "end_think": Prose.late_stop,
            },
            end=Hermes.cut_list,
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")


class Step3p5(Qwen3Coder):
    """Step 3.5 and 3.7, which always think."""

    newlines_behind_reasoning: ClassVar[int] = 1
    token_ids: ClassVar[Mapping[int, str]] = {}


class Step5(Step3p5):
    token_ids: ClassVar[Mapping[int, str]] = {128008: "<tool_call>", 128009: "</tool_call>", 128799: "</think>"}


class MiMo(Qwen3Coder):
    """MiMo V2, which writes no newlines around a value: each is part of it."""

    verbatim: ClassVar = True
    structural_tag: ClassVar[str | None] = "mimo"


class NemotronV3(Qwen3Coder):
    newlines_behind_reasoning: ClassVar[int] = 1
    token_ids: ClassVar[Mapping[int, str]] = {}


class SeedOss(Qwen3Coder):
    """Seed-OSS: the same in `<seed:tool_call>`, each newline of a value part of it."""

    thinking_tags: ClassVar[tuple[str, str]] = ("<seed:think>", "</seed:think>")
    call_openers: ClassVar[tuple[str, ...]] = ("<seed:tool_call>",)
    structural_tag: ClassVar[str | None] = None
    newlines_behind_reasoning: ClassVar[int] = 1
    newlines_before_calls: ClassVar[int] = 2
    verbatim: ClassVar = True
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            "<seed:think>": "think",
            "</seed:think>": "end_think",
            "<seed:tool_call>": "block",
            "</seed:tool_call>": "end_block",
            **_CALLS,
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {}

    def close_value(self) -> State:
        """Takes the tag held back as real, and reports a value without `</parameter>`: newlines may be too many."""
        if self._candidate in self.implied:
            self.report("drifted_marker", self._held_at, self._held[0])
        return super().close_value()

    def end_unclosed_value(self) -> None:
        self.report("drifted_marker", self.position, "")
        super().end_unclosed_value()
