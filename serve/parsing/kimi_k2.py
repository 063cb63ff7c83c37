"""The grammar of Kimi K2, K2.5 and K2.6: sections of calls between special tokens, JSON arguments.

The tool that a call's id means is found in `tools.py`, or by the arguments in `arguments.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.json_call import JsonCall
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table

_NUMBERED = re.compile(r"(?P<name>[^\s<>{}@\"']+):\d+")


class KimiK2(JsonCall):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, in a section or bare.

    Attributes:
        headless: What a call looks like in prose when its begin marker was lost.
    """

    headless: ClassVar[re.Pattern[str]] = re.compile(r"[\w.:\-]+:\d+\s*\Z")

    call_openers: ClassVar[tuple[str, ...]] = (
        "<|tool_calls_section_begin|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_begin|>",
    )
    structural_tag: ClassVar[str | None] = "kimi"
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,
            "<|tool_calls_section_begin|>": "section",
            "<|tool_call_section_begin|>": "section",
            "<|tool_calls_section_end|>": "end_section",
            "<|tool_call_section_end|>": "end_section",
            "<|tool_call_begin|>": "call",
            "<|tool_call_argument_begin|>": "arguments",
            "<|tool_call_end|>": "end_call",
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {
        163595: "<|tool_calls_section_begin|>",
        163596: "<|tool_calls_section_end|>",
        163597: "<|tool_call_begin|>",
        163598: "<|tool_call_argument_begin|>",
        163599: "<|tool_call_end|>",
        163606: "<think>",
        163607: "</think>",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._noisy = False  # text stands between a section's begin and its first call

    # Around calls

    def open_section(self, raw: str) -> State:
        if self.state is State.SECTION:
            self._fail("malformed_call" if self._noisy else "stray_marker")
        self._leave_prose()
        self._begin_at(raw)
        return State.SECTION

    def open_call(self, raw: str) -> State:
        self._leave_prose()
        if self._noisy:
            section, *noise = self._raw
            self.out.violation("stray_text", self._begin + len(section), "".join(noise))
        return self._begin_header(raw)

    def noise(self, raw: str) -> State | None:
        """Takes text between a section's begin and its first call."""
        self._raw.append(raw)
        self._noisy = self._noisy or not raw.isspace()
        return self._no_call() if self.is_endless(self._begin, raw) else None

    def arguments_in_section(self, raw: str) -> State | None:
        """Takes the marker of arguments where a call's own is missing: the id in front of it leaves no doubt."""
        header = "".join(self._raw[1:]).strip()
        if not _NUMBERED.fullmatch(header):
            return self.noise(raw)
        self._noisy = False
        self._header = [header]
        begun = self.out.calls
        state = self.open_arguments(raw)
        if self.out.calls > begun:
            self.out.violation("drifted_marker", self.position, raw, begun)
        return state

    def stop_in_section(self, raw: str) -> None:
        """Takes `</think>` in front of a call."""
        self._raw.append(raw)
        if self.thought:
            self.late_stop(raw)
        else:
            self._noisy = True

    def close_section(self, raw: str) -> State:
        self.out.boundary()
        return State.CONTENT

    def close_empty_section(self, raw: str) -> State:
        self._fail("malformed_call", raw)
        return self.close_section(raw)

    def end_in_section(self, raw: str) -> State:
        self._fail("unfinished_call")
        return State.CONTENT

    def stray_arguments(self, raw: str) -> State | None:
        if not self.headless.search("".join(self.out.tail)[-64:]):
            self.stray(raw)
            return None
        self.out.violation("malformed_call", self.position, raw)
        self.out.content(raw)
        return State.REMAINS

    def end_remains(self, raw: str) -> State:
        self.out.content(raw)
        return State.REMAINS_END

    def write_on(self, raw: str) -> State:
        self.out.content(raw)
        return State.CONTENT

    def _begin_at(self, raw: str) -> None:
        self._raw = [raw]
        self._begin = self.position
        self._noisy = False

    def _begin_header(self, raw: str) -> State:
        self._begin_at(raw)
        self._header = []
        return State.HEADER

    def _leave_prose(self) -> None:
        if self.state is State.REASONING:
            self.out.end_reasoning(keep_space=True)
            self.reasoning_ends(self.position)
        self.out.boundary()

    # The header

    def read_header(self, raw: str) -> State | None:
        self._raw.append(raw)
        self._header.append(raw)
        return self._no_call() if self.is_endless(self._begin, raw) else None

    def _no_call(self) -> State:
        """Shows what has been collected, which goes on without end where a call is to begin."""
        text = "".join(self._raw)
        self._raw = []
        self._noisy = False
        self.out.violation("malformed_call", self._begin, text[:LONGEST_NAME])
        self.out.content(text)
        return State.REMAINS

    def open_arguments(self, raw: str) -> State:
        self._raw.append(raw)
        return self._begin_arguments("".join(self._header).strip())

    def drop_header(self, raw: str) -> State:
        """Ends a call whose arguments have not begun."""
        self._fail("malformed_call" if raw else "unfinished_call", raw)
        return State.BETWEEN

    def close_in_header(self, raw: str) -> State:
        self._fail("malformed_call")
        return State.CONTENT

    def reopen_in_header(self, raw: str) -> State:
        self._fail("malformed_call")
        return self._begin_header(raw)

    def _fail(self, kind: ViolationKind, raw: str = "") -> None:
        super()._fail(kind, raw)
        self._noisy = False

    def _id(self, header: str, name: str) -> str:
        """Returns the id of a call: the model gives it, or else one of the same form."""
        return header or f"functions.{name}:{self.out.calls}"

    def _name(self, id: str) -> str | None:
        """Returns the name in an id, with or without `functions.` and `:N` around it; None if none is clear."""
        self._meant = self.tools.names.meant_by(id)
        if self._meant:
            return self._meant[0] if len(self._meant) == 1 else None
        match = _NUMBERED.fullmatch(id)
        return match["name"].removeprefix("functions.") or None if match else None

    # The arguments

    def end_call_and_section(self, raw: str) -> State:
        self._finish_call(cut=True)
        return self.close_section(raw)

    def end_call_at_next(self, raw: str) -> State:
        self._finish_call(cut=True)
        return self._begin_header(raw)

    def end_call_at_section(self, raw: str) -> State:
        self._finish_call(cut=True)
        return self.open_section(raw)

    _calls: ClassVar = {"section": open_section, "call": open_call}
    _strays: ClassVar = {**_calls, "end_call": Prose.stray, "arguments": stray_arguments}
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row(
            {**_calls, **dict.fromkeys(("end_section", "end_call", "arguments"), Prose.stray)}
        ),
        State.CONTENT: content_row({**_strays, "end_section": Prose.stray}),
        State.SECTION: Row(
            text=noise,
            on={
                "call": open_call,
                "arguments": arguments_in_section,
                "end_section": close_empty_section,
                "section": open_section,
                "end_think": stop_in_section,
            },
            end=end_in_section,
        ),
        State.HEADER: Row(
            text=read_header,
            on={
                "arguments": open_arguments,
                "call": reopen_in_header,
                "end_call": drop_header,
                "end_section": close_in_header,
                "section": close_in_header,
            },
            end=drop_header,
        ),
        State.ARGUMENTS: Row(
            text=JsonCall.read_arguments,
            on={
                "end_call": JsonCall.end_call,
                "call": end_call_at_next,
                "end_section": end_call_and_section,
                "section": end_call_at_section,
            },
            end=JsonCall.end_output,
            json=True,
        ),
        State.BETWEEN: content_row({**_strays, "end_section": close_section}),
        State.REMAINS: Row(text=Prose.write, on={**_calls, "end_call": end_remains}),
        State.REMAINS_END: Row(text=write_on, on={**_calls, "end_section": write_on}),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("section", "call")
