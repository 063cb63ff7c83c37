"""The grammar of Llama, LFM2, OLMo 3, Granite 3 and others that write calls without tags around each: as JSON or as
Python writes them, one behind another or in a list, at the beginning of the answer or behind a marker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Envelope, Hermes
from serve.parsing.keywords import Keywords
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import THINK, Prose, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import Block

_PARTING = re.compile(r"[\s;]*()")
_PARTING_IN_LIST = re.compile(r"[\s,;]*(?:(\])[\s;]*)?")
# The head of a call, and what may become one; bounded, so that prose is not held back for long.
_HEAD = re.compile(
    r"\s{0,64}(?:\[\s{0,64})?(?P<name>[^\W\d][\w.\-]{0,256})\s{0,64}(?=\(\s{0,64}(?:\)|[^\W\d]\w{0,256}\s{0,64}=))"
)
_MAY_BE_HEAD = re.compile(
    r"\s{0,64}(?:\[\s{0,64})?(?:[^\W\d][\w.\-]{0,256}\s{0,64}(?:\(\s{0,64}(?:[^\W\d]\w{0,256}\s{0,64}=?)?)?)?"
)


class Bare(Hermes):
    """`{"name": "f", "parameters": {…}}; {…}`, `[f(key="text"), g()]`, and the same behind a marker.

    An answer may be JSON itself. Without a marker, an object is a call only if its keys are those of one.
    """

    call_openers: ClassVar[tuple[str, ...]] = (
        *("<|python_tag|>", "<|python_start|>"),  # Llama 3 and 4
        *("<|tool_call_start|>", "<function_calls>"),  # LFM2 and OLMo 3
        *("<|tool_call|>", "<tool_call>"),  # Granite 3
        *("functools[", "<tool_calls>", "[TOOL_CALLS]"),  # Phi-4-mini, Jamba and xLAM
    )
    structural_tag: ClassVar[str | None] = None
    members: ClassVar[frozenset[str]] = Hermes.members | {"type"}
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,
            **dict.fromkeys(call_openers, "block"),
            **dict.fromkeys(("<|tool_call_end|>", "<|python_end|>"), "end_block"),
            **dict.fromkeys(("</function_calls>", "</tool_call>", "</tool_calls>"), "end_block"),
            **dict.fromkeys(("\n[", "\n{"), "bare"),
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._marked = False  # a marker, or the list that it stands in, shows that a call is due
        self._in_python = False
        self._arguments = Keywords()
        self._waiting = ""  # the end of the text so far, which more text decides about

    def open_block(self, raw: str) -> State:
        self._marked = True
        state = super().open_block(raw)
        self._listed = raw.endswith("[")
        return state

    def write_or_call(self, raw: str) -> State | None:
        """Takes text in content, which is a call if it begins the answer as one; behind prose one begins a line."""
        text = raw.lstrip()
        if text[:1] in ("{", "[") and not self.out.wrote_content and not self.out.calls:
            return self.open_bare(raw)
        self.out.content(raw)
        return None

    def open_bare(self, raw: str) -> State | None:
        """Takes the sign that an object or a list begins with, and the space in front of it."""
        text = raw.lstrip()
        if not self.tools or self.out.fenced:
            self.out.content(raw)
            return None
        if space := raw[: len(raw) - len(text)]:
            self.out.content(space)
        self._marked = False
        return self.go_on(self._begin(text, self.position + len(space)), self.position + len(raw))

    def line_in_head(self, raw: str) -> State | None:
        """Takes a line that begins like a call where the head of one is due."""
        is_prose = "".join(self.raw[1:]).strip()
        return self.back_to_prose(raw, None) if is_prose else self.begin_object(raw)

    def line_behind(self, raw: str) -> State | None:
        """Takes a line that begins like a call behind one."""
        return self.next_call(raw) if self._listed else self.dispatch(raw, State.CONTENT)

    def release(self, fault: ViolationKind | None = None) -> State:
        """Returns what was held back to the prose; without a marker or the name of a tool it never was a call."""
        return super().release(fault if self._marked or self._envelope.name in self.tools else None)

    def _new_envelope(self) -> Envelope:
        return Envelope(self.name_key, None if self._marked else self.members)

    def _is_call(self, whole: dict[str, object] | None) -> bool:
        known = self._envelope.name in self.tools and not self.out.wrote_content
        return super()._is_call(whole) and (self._marked or self._started or known)

    def _end_of_parting(self, text: str, place: int) -> int:
        if not self._marked and not self.out.at_call:  # it was none
            return place
        match = (_PARTING_IN_LIST if self._listed else _PARTING).match(text, place)
        assert match is not None  # the pattern matches the empty text
        self._listed = self._listed and not match[1]
        return match.end()

    def begin_object(self, raw: str) -> State | None:
        """Reads the head of a call, or the first object if they are JSON."""
        return self.go_on(self._read_head(raw), self.position + len(raw))

    def _read_head(self, raw: str) -> State | None:
        held = "".join(self.raw[1:])
        text = held + raw
        bare = text.lstrip()
        if bare.removeprefix("[").lstrip().startswith("{"):
            self._in_python = False
            return super().begin_object(raw)
        match = _HEAD.match(text)
        if match is None or (self.out.wrote_content and not self._marked and match["name"] not in self.tools):
            if _MAY_BE_HEAD.fullmatch(text):
                self.raw.append(raw)
                return None
            meant = bare.startswith("[") or "\n" in text[: len(text) - len(bare)]
            self.raw = self.raw[:1]
            return self.back_to_prose(text, self.fault() if meant else None)
        self._in_python = True
        self._listed = self._listed or bare.startswith("[")
        self.enter_call()
        self.spoiled = False
        self.out.by_tags = False
        self.out.start_call(f"call_{self.out.calls}", match["name"])
        self._arguments = Keywords()
        self.raw = [self.raw[0], match.group()]
        return self._read_arguments(text[match.end() :])

    def read_arguments(self, raw: str) -> State | None:
        return self.go_on(self._read_arguments(raw), self.position + len(raw))

    def _read_arguments(self, raw: str, *, final: bool = False) -> State:
        """Reads on in the arguments, up to their end."""
        text = self._waiting + raw
        size, written = self._arguments.read(text, final=final)
        rest = text[size:]
        self._waiting = ""
        self.raw.append(text[:size])
        if written:
            self.out.arguments(written)
        if not self._arguments.ended and not self._arguments.endless:
            self._waiting = rest
            self.in_string = self._arguments.in_string and rest[:1] not in ("'", '"')
            return State.ARGUMENTS
        self.in_string = False
        if self._arguments.endless:
            self.finish_call("unfinished_call")
            self._write(rest)
            return State.CONTENT
        if self._arguments.drifted:
            self.report("drifted_marker", self.begin, "".join(self.raw))
        self.finish_call(None if self._arguments.sound else "malformed_call")
        self.rest = rest
        return State.AFTER

    def next_call(self, raw: str) -> State | None:
        """Takes text behind a call: the next one, or prose."""
        if not self._in_python:
            return self.next_object(raw)
        return self.go_on(self.follow(raw, self.position), self.position + len(raw))

    def follow(self, raw: str, begin: int) -> State:
        place = self._end_of_parting(raw, 0)
        if place == len(raw):
            return State.AFTER
        self._marked = self._listed
        return self._begin(raw[place:], begin + place)

    def _begin(self, raw: str, begin: int) -> State:
        """Begins what may be a call without a marker, at a place of the output."""
        self.begin_call(State.CONTENT, begin, "")
        here, self.position = self.position, begin
        state = self._read_head(raw) or State.OPENED
        self.position = here
        return state

    def cut(self, raw: str) -> State:
        """Ends a call where a marker, or the end of the output, comes inside its arguments."""
        state = self.go_on(self._read_arguments("", final=True), self.position) or State.AFTER
        if state is not State.ARGUMENTS:
            return self.dispatch(raw, state) if raw else state
        self.in_string = False
        self.out.arguments(self._arguments.cut())
        return self.leave_call(raw)

    table: ClassVar[Mapping[State, Row]] = {
        **Hermes.table,
        State.REASONING: reasoning_row({"block": open_block}),
        State.CONTENT: replace(Hermes.table[State.CONTENT].but(block=open_block, bare=open_bare), text=write_or_call),
        State.OPENED: Row(
            begin_object,
            {"end_block": Block.empty_block, "block": Block.reopen_block, "bare": line_in_head},
            end=Block.cut_block,
        ),
        State.ARGUMENTS: Row(read_arguments, dict.fromkeys(("block", "end_block"), cut), end=cut, json=True),
        State.AFTER: Row(
            next_call,
            {
                "block": open_block,
                "end_block": Hermes.close_list,
                "end_think": Prose.late_stop,
                "bare": line_behind,
            },
            end=Hermes.cut_list,
        ),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
