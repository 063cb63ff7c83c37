"""The grammar of Qwen3-Coder, 3.5 and 3.6: XML calls whose values the tool's schema turns into JSON.

These models fall back now and then on what others write: one JSON object in the block, or names as attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Hermes
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import QWEN_IDS, Block
from serve.parsing.xml_closing import END, Closings
from serve.parsing.xml_value import Value

_OTHER_ENDS = (
    "</function_invocation>",
    "</function_call>",
    "</function_calls>",
    "</tool_calls>",
    "</tools>",
    "</invoke>",
)
_NAME = re.compile(r"[^\s<>{}=\"']+")


_ATTRIBUTE = re.compile(r"""<\w+ name=\s*(?P<quote>["']?)(?P<name>[^"'<>]+)(?P=quote)""")


def _name(raw: str) -> str:
    """Returns the name of a function, or of a parameter, in its tag."""
    if attribute := _ATTRIBUTE.match(raw):
        return attribute["name"].strip()
    return raw.partition("=")[2][:-1].strip()


class Qwen3Coder(Hermes):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

    call_openers: ClassVar = ("<tool_call>",)
    structural_tag: ClassVar = "qwen_3_coder"
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,
            "<tool_call>": "block",
            "</tool_call>": "end_block",
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
    )
    token_ids: ClassVar[Mapping[int, str]] = QWEN_IDS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._by_attributes = False
        self._wrapped = False
        self._name = ""
        self._given: set[str] = set()
        self._value = Value(None, {})
        self._closings = Closings()
        self._key = ""
        self._value_at = 0  # its first piece among `raw`
        self._value_begin = 0
        self._candidate = ""
        self._held: list[str] = []
        self._held_at = 0

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
        if not (_NAME.fullmatch(name) or name in self.tools):
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

    def no_parameter(self, raw: str) -> State | None:
        """Takes text, or a marker that cannot follow `<function=name>`."""
        raw = self.keep_space(raw)
        return self.back_to_prose(raw, self.fault()) if raw else None

    def first_parameter(self, raw: str) -> State:
        if not self._plausible(_name(raw)):
            return self.malformed(raw)
        self._start_by_tags()
        return self.parameter(raw)

    def first_named_parameter(self, raw: str) -> State:
        self._by_attributes = True
        return self.first_parameter(raw)

    def no_arguments(self, raw: str) -> State:
        """Takes `</function>`, or `</tool_call>` in its place, right after the name."""
        self._start_by_tags()
        self.raw.append(raw)
        return self._end(State.AFTER if raw == "</function>" else State.CONTENT)

    def cut_function(self, raw: str) -> State:
        self.enter_call()
        return self.release("unfinished_call")

    def _start_by_tags(self) -> None:
        self.enter_call()
        self._given = set()
        self.out.by_tags = True
        self.out.start_call(f"call_{self.out.calls}", self._name)

    # Parameters

    def parameter(self, raw: str) -> State:
        key = _name(raw)
        if key in self._given:
            self._fault("duplicate_argument", self.position, raw)
        if self.tools.properties(self._name) is None and not self._plausible(key):
            self._fault("unknown_argument", self.position, raw)
        opening = ", " if self._given else "{"
        self._given.add(key)
        self.raw.append(raw)
        self._value = Value(self.tools.parameter(self._name, key), self.tools.schema(self._name))
        self._closings = Closings(self._wrapped)
        self._key = key
        self._value_at = len(self.raw)
        self._value_begin = self.position + len(raw)
        self.out.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return State.VALUE

    def _plausible(self, key: str) -> bool:
        return _NAME.fullmatch(key) is not None or self.tools.parameter(self._name, key) is not None

    def value(self, raw: str) -> None:
        self.raw.append(raw)
        text = self._value.feed(raw)
        if text:
            self.out.arguments(text)

    def parameter_in_value(self, raw: str) -> State | None:
        """Takes the next parameter, if its predecessor's closing tag is missing, or letters of the value."""
        key = _name(raw)
        properties = self.tools.properties(self._name)
        if key in self._given or not self._plausible(key) or (properties is not None and key not in properties):
            self.tag_in_value(raw)
            return None
        self._note_own_tag()
        self._end_value()
        return self.parameter(raw)

    def named_parameter_in_value(self, raw: str) -> State | None:
        """Takes `<parameter name="key">` in a value: letters of it, unless the call itself is written so."""
        if self._by_attributes:
            return self.parameter_in_value(raw)
        self.value(raw)
        return None

    def tag_in_value(self, raw: str) -> None:
        self._closings.opened(self.lexicon.kind(raw))
        self.value(raw)

    def maybe_close(self, raw: str) -> State:
        self._candidate = self.lexicon.kind(raw)
        self._held = [raw]
        self._held_at = self.position
        return State.CLOSING

    def after_maybe(self, raw: str) -> State | None:
        """Decides by the token after a closing tag whether it closed the value."""
        rest = raw.lstrip()
        if len(rest) < len(raw):
            self._held.append(raw[: len(raw) - len(rest)])
        if not rest:
            return None
        kind = self.lexicon.kind(rest)
        follower = "parameter" if kind == "named_parameter" and self._by_attributes else kind
        if not self._closings.closes(self._candidate, follower or "text"):
            self._keep()
            return self.dispatch(rest, State.VALUE)
        space = "".join(self._held[1:])
        state = self._close()
        if space and not kind:
            self.out.content(space)
        return self.dispatch(rest, state)

    def cut_maybe(self, raw: str) -> State:
        if self._closings.closes(self._candidate, END):
            return self._close()
        self._keep()
        return State.VALUE

    def _close(self) -> State:
        """Takes the tag held back as real."""
        self._note_own_tag()
        self.raw += self._held
        implied = self._candidate in ("end_function", "end_block")
        if self._candidate == "drifted":
            self._fault("drifted_marker", self._held_at, self._held[0])
        self._end_value()
        if not implied:
            return State.PARAMETERS
        return self._end(State.AFTER if self._candidate == "end_function" else State.CONTENT)

    def _keep(self) -> None:
        """Takes the tag held back as text of the value."""
        self._closings.kept(self._candidate)
        self.value("".join(self._held))

    def _note_own_tag(self) -> None:
        """Marks a value that ends in `</key>` without having opened it: the model mixed up two ways to close it."""
        pieces = self.raw[self._value_at :]
        while pieces and not pieces[-1].strip():
            pieces.pop()
        if pieces and pieces[-1].rstrip().endswith(">"):  # few values do, so that few are put together
            text = "".join(pieces).rstrip()
            if text.endswith(f"</{self._key}>") and f"<{self._key}" not in text:
                self._closings.odd = True

    def _end_value(self) -> None:
        self.out.arguments(self._value.finish())
        if self._closings.odd:
            self._fault("ambiguous_value", self._value_begin, "".join(self.raw[self._value_at :]))

    # The end of a call

    def behind(self, raw: str) -> State | None:
        """Takes text after a call: another object, if that was one."""
        return self.write_behind(raw) if self.out.by_tags else self.next_object(raw)

    def surplus_parameter(self, raw: str) -> None:
        """Takes a tag of a parameter right after a call: its last value may have gone on."""
        self.out.violation("stray_marker", self.position, raw, hidden=True)

    def other_end(self, raw: str) -> None:
        """Takes a closing tag of another format in content: one too many right behind a call, or a word."""
        if self.out.at_call:
            self.surplus_tag(raw)
        else:
            self.write(raw)

    def end_function(self, raw: str) -> State:
        self.raw.append(raw)
        return self._end(State.AFTER)

    def end_function_and_block(self, raw: str) -> State:
        self.raw.append(raw)
        return self._end(State.CONTENT)

    def space_between(self, raw: str) -> None:
        self.raw.append(raw)

    def cut_value(self, raw: str) -> State:
        self.out.arguments(self._value.cut())
        return self.cut_call(raw)

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call; its arguments stay open, so that nobody takes them for complete."""
        self.out.end_call(self.begin, "".join(self.raw), "unfinished_call")
        return State.CONTENT

    def _end(self, state: State) -> State:
        self.out.arguments("}" if self._given else "{}")
        self.out.end_call(self.begin, "".join(self.raw))
        self.raw = []
        return state

    def _fault(self, kind: ViolationKind, position: int, raw: str) -> None:
        self.out.violation(kind, position, raw, self.out.calls - 1)

    _tags: ClassVar = ("parameter", "end_parameter", "drifted", "end_function", "end_block")
    _parameters: ClassVar = ("parameter", "named_parameter", "end_parameter", "drifted")
    _open: ClassVar = {"block": Block.open_block, "function": bare_function}
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row(_open),
        State.CONTENT: content_row({**dict.fromkeys(_tags, Block.stray_tag), "end_other": other_end, **_open}),
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
            text=no_parameter,
            on={
                "parameter": first_parameter,
                "named_parameter": first_named_parameter,
                **dict.fromkeys(("end_function", "end_block"), no_arguments),
            },
            end=cut_function,
        ),
        State.VALUE: Row(
            text=value,
            on={
                "parameter": parameter_in_value,
                "named_parameter": named_parameter_in_value,
                "end_parameter": maybe_close,
                "drifted": maybe_close,
                "function": tag_in_value,
                "block": tag_in_value,
                "end_function": maybe_close,
                "end_block": maybe_close,
            },
            end=cut_value,
        ),
        State.CLOSING: Row(text=after_maybe, end=cut_maybe),
        State.PARAMETERS: Row(
            text=space_between,
            on={
                **dict.fromkeys(("parameter", "named_parameter"), parameter),
                "end_function": end_function,
                "end_block": end_function_and_block,
            },
            end=cut_call,
        ),
        State.ENVELOPE: Hermes.table[State.ENVELOPE],
        State.AFTER: Row(
            text=behind,
            on={
                **dict.fromkeys(("end_function", "end_other"), Block.surplus_tag),
                **dict.fromkeys(_parameters, surplus_parameter),
                "function": next_function,
                "block": Block.open_block,
                "end_block": Block.close_block,
                "end_think": Prose.late_stop,
            },
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
