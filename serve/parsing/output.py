"""Turns what a grammar recognises into events: runs of prose, calls, and violations."""

from __future__ import annotations

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


class Output:
    """Collects the events of one stream.

    Whitespace at the beginning of a run of content is held back until the run has a word: between markers it is part
    of the markup. So is whitespace in front of `</think>`.

    Attributes:
        events: Those not taken yet.
        wrote_reasoning: True once there is reasoning.
        wrote_content: True once there is content.
        calls: Number of calls begun.
        quoting: True if the prose ends with the opening backtick of a quotation.
        tail: The last pieces of content.
        by_tags: True if each argument has a tag of its own.
    """

    def __init__(self, tools: Tools) -> None:
        self.events: list[Event] = []
        self.tools = tools
        self.wrote_reasoning = False
        self.wrote_content = False
        self.calls = 0
        self.quoting = False
        self.by_tags = False
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._space: list[str] = []
        self._in_run = False
        self._bounded = False
        self._odd_ticks = False
        self._pieces: list[str] = []
        self._name = ""

    # Prose

    def reasoning(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._space.append(text)
            self.quoting = False
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

    def content(self, text: str) -> None:
        if not self._in_run:
            if text.isspace():
                self._space.append(text)
                return
            self._flush_space(Content)
            self._in_run = True
            self.wrote_content = True
        self.events.append(Content(text))
        self.tail.append(text)
        self._watch_quotes(text)

    def boundary(self) -> None:
        """Ends a run of prose at markup."""
        self._space.clear()
        self._in_run = False
        self._odd_ticks = False
        self.quoting = False
        self._bounded = True

    @property
    def at_call(self) -> bool:
        """True if there is nothing but space since the last call, or in it."""
        return self.calls > 0 and not self._in_run

    def finish(self, reasoning: bool) -> None:
        if reasoning:
            self._flush_space(Reasoning)
        elif not self._bounded:
            self._flush_space(Content)

    def _flush_space(self, kind: type[Reasoning] | type[Content]) -> None:
        if self._space:
            self.events.append(kind("".join(self._space)))
            self._space.clear()

    def _watch_quotes(self, text: str) -> None:
        if "`" in text:
            self._odd_ticks ^= text.count("`") & 1 == 1
        self.quoting = self._odd_ticks and text[-1] == "`"

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
        """Ends the call and reports what is wrong with it.

        Args:
            position: The call's, in characters from the start of the output.
            raw: The call as the model wrote it.
            fault: The violation that the grammar found, if any.
        """
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
