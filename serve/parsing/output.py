"""Turns what a grammar recognises into events: runs of prose, calls, and violations."""

from __future__ import annotations

import re
from collections import deque

from serve.parsing.arguments import audit
from serve.parsing.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Fault,
    Reasoning,
    Violation,
    ViolationKind,
)
from serve.parsing.tools import Tools

_TAIL = 64
# What begins a block of code, in a list or a block quote, too.
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}(?=[^`]*\Z)|~{3,})")
_LONGEST_FENCE = 256  # characters of a line that may begin or end one
_MOST_UNREAD = 512  # pieces


class Output:
    """Collects the events of one stream.

    Whitespace at the beginning of a run of content is held back until the run has a word: between markers it is part
    of the markup. So is whitespace in front of `</think>`, and so are the newlines that templates put around content.

    Attributes:
        events: Those not taken yet.
        calls: Number of calls begun.
        quoting: True if the prose ends with the opening backtick of a quotation, or in one that began with a marker.
        quotation: True inside a quotation that began with a marker.
        shown: The place and the text of the first marker that the present block of code holds as letters.
        tail: The last pieces of content.
        by_tags: True if each argument has a tag of its own.
    """

    def __init__(self, tools: Tools, newlines_behind_reasoning: int = 0, newlines_before_calls: int = 0) -> None:
        self.events: list[Event] = []
        self.tools = tools
        self.wrote_reasoning = False
        self.wrote_content = False
        self.calls = 0
        self.quoting = False
        self.shown: tuple[int, str] | None = None
        self.by_tags = False
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._space: list[str] = []
        self._newlines_behind_reasoning = newlines_behind_reasoning
        self._newlines_before_calls = newlines_before_calls
        self._newlines = ""  # at the end of the content so far, as many as may be markup
        self._behind_reasoning = False
        self._in_run = False
        self._bounded = False
        self._odd_ticks = False
        self.quotation = False
        self._fence = ""  # of the block of code that is open
        self._line = ""  # the beginning of the present line of prose
        self._unread: list[str] = []  # prose behind that
        self._pieces: list[str] = []
        self._name = ""

    # Prose

    def reasoning(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._space.append(text)
            self.quoting = self.quotation = self.quotation and "\n" not in text
            self._unread.append(text)
            return
        self._flush_space(Reasoning)
        self.events.append(Reasoning(body))
        if len(body) < len(text):
            self._space.append(text[len(body) :])
        self.wrote_reasoning = True
        self._watch_quotes(text)

    def end_reasoning(self, keep_space: bool) -> None:
        if keep_space:
            self._flush_space(Reasoning)
        self.boundary()
        self._behind_reasoning = not keep_space

    def content(self, text: str) -> None:
        if not self._in_run:
            if text.isspace():
                self._space.append(text)
                return
            text = self._begin_run(text)
        self._watch_quotes(text)
        if self._newlines_before_calls:
            text = self._without_last_newlines(self._newlines + text)
        if text:
            self.events.append(Content(text))
            self.tail.append(text)

    def _begin_run(self, text: str) -> str:
        """Returns the first text of a run of content with the whitespace in front of it that is no markup."""
        text = "".join([*self._space, text])
        self._space.clear()
        self._in_run = True
        self.wrote_content = True
        if self._behind_reasoning:
            newlines = min(len(text) - len(text.lstrip("\n")), self._newlines_behind_reasoning)
            return text[newlines:]
        return text

    def _without_last_newlines(self, text: str) -> str:
        """Returns text without newlines at its end, which are held back until more text shows that they are none."""
        newlines = min(len(text) - len(text.rstrip("\n")), self._newlines_before_calls)
        self._newlines = "\n" * newlines
        return text[: len(text) - newlines]

    def boundary(self) -> None:
        """Ends a run of prose at markup."""
        self._space.clear()
        self._newlines = ""
        self._behind_reasoning = False
        self._in_run = False
        self._odd_ticks = False
        self.quotation = False
        self.quoting = False
        self.leave_code()
        self._bounded = True

    def leave_code(self) -> None:
        """Ends what block of code the prose stands in."""
        self._fence = self._line = ""
        self._unread.clear()

    @property
    def at_call(self) -> bool:
        """True if there is nothing but space since the last call, or in it."""
        return self.calls > 0 and not self._in_run

    def finish(self, reasoning: bool) -> None:
        if self._newlines:
            self.events.append(Content(self._newlines))
            self._newlines = ""
        if reasoning:
            self._flush_space(Reasoning)
        elif not self._bounded:
            self._flush_space(Content)

    def _flush_space(self, kind: type[Reasoning] | type[Content]) -> None:
        if self._space:
            self.events.append(kind("".join(self._space)))
            self._space.clear()

    def quote(self) -> None:
        """Notes that a marker is quoted: all up to the closing backtick, or the end of the line, is the quotation."""
        self.quotation = True

    def _watch_quotes(self, text: str) -> None:
        if "`" in text:
            self._odd_ticks ^= text.count("`") & 1 == 1
        self.quotation = self.quotation and "`" not in text and "\n" not in text
        self.quoting = self.quotation or (self._odd_ticks and text[-1] == "`")
        self._unread.append(text)
        if len(self._unread) > _MOST_UNREAD:
            self._read_lines()

    def _read_lines(self) -> None:
        *lines, last = (self._line + "".join(self._unread)).split("\n")
        self._unread.clear()
        self._line = last[:_LONGEST_FENCE]
        for line in lines:
            self._fence = self._fence_behind(line)
            if not self._fence:
                self.shown = None

    @property
    def fenced(self) -> bool:
        """True if the prose ends in a fenced block of code. Its lines are not read before, as hardly any text asks."""
        self._read_lines()
        return self._fence_behind(self._line) != ""

    def _fence_behind(self, line: str) -> str:
        """Returns the fence of the block of code that is open behind a line of the prose; empty if none is."""
        if "```" not in line and "~~~" not in line:
            return self._fence
        if not self._fence:
            opening = _FENCE.match(line[:_LONGEST_FENCE])
            return "" if opening is None else opening[1]
        run = line[:_LONGEST_FENCE].strip(" \t\r>")
        ends = len(run) >= len(self._fence) and run == self._fence[0] * len(run)
        return "" if ends else self._fence

    # Calls

    def start_call(self, id: str, name: str) -> None:
        self.boundary()
        self.events.append(CallStart(self.calls, id, name))
        self.calls += 1
        self._pieces = []
        self._name = name

    def arguments(self, text: str) -> None:
        self._pieces.append(text)
        self.events.append(CallArguments(self.calls - 1, text))

    def has_arguments(self) -> bool:
        return bool(self._pieces)

    def current_arguments(self) -> str:
        return "".join(self._pieces)

    def end_call(self, position: int, raw: str, fault: ViolationKind | None = None) -> None:
        """Ends the call and reports what is wrong with it."""
        index = self.calls - 1
        kinds = audit(self.current_arguments(), self._name, self.tools, by_tags=self.by_tags)
        if fault:
            self.violation(fault, position, raw, index, hidden="malformed_arguments" not in kinds)
        for kind in kinds:
            if kind != "malformed_arguments" or fault is None:
                self.violation(kind, position, raw, index)
        self.events.append(CallEnd(index, fault is None and "malformed_arguments" not in kinds))
        self.boundary()

    def violation(
        self, kind: ViolationKind, position: int, raw: str, index: int | None = None, *, hidden: bool = False
    ) -> None:
        self.events.append(Fault(Violation(kind, position, raw, index, hidden)))
