"""Splits reasoning off, and passes everything after it on unchanged for a parser of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from serve.parsing.events import Event, Fault, Reasoning, Violation
from serve.parsing.parser import GRAMMARS, StreamParser


class Parts(NamedTuple):
    reasoning: str
    rest: str  # the text after reasoning, from the step on that ends it
    violations: tuple[Violation, ...]


class ReasoningSplit:
    """One stream's reasoning. Arguments are those of `StreamParser`; without `thinking`, there is reasoning only if the
    output opens it itself.

    Attributes:
        ended: True once reasoning is over, or if there is none.
    """

    def __init__(self, grammar: str, thinking: bool, marker_ids: Mapping[int, str] | None = None) -> None:
        self.ended = False
        self._parser = StreamParser(grammar, thinking=thinking, marker_ids=marker_ids)
        self._opening = GRAMMARS[grammar].thinking_tags[0]
        self._head = self._opening if thinking else ""
        self._pieces: list[str] = []
        self._length = 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> Parts:
        if self.ended:
            return Parts("", text, ())
        self._pieces.append(text)
        self._length += len(text)
        if self._head != self._opening:
            self._head = (self._head + (text if self._head else text.lstrip()))[: len(self._opening)]
            if not self._opening.startswith(self._head):
                self.ended = True
                return Parts("", "".join(self._pieces), ())
        return self._parts(self._parser.feed(text, token_ids))

    def finish(self) -> Parts:
        if self.ended:
            return Parts("", "", ())
        if self._head != self._opening:
            self.ended = True
            return Parts("", "".join(self._pieces), ())
        return self._parts(self._parser.finish())

    def _parts(self, events: list[Event]) -> Parts:
        machine = self._parser.machine
        end = machine.reasoning_end
        reasoning = "".join(event.text for event in events[: machine.reasoning_events] if isinstance(event, Reasoning))
        self.ended = end is not None
        faults = [event.violation for event in events if isinstance(event, Fault)]
        before = tuple(fault for fault in faults if end is None or fault.position < end)
        return Parts(reasoning, "" if end is None else self._text_from(end), before)

    def _text_from(self, place: int) -> str:
        """Returns the text from a place on, which is not far back."""
        start = self._length
        kept = []
        while start > place:
            piece = self._pieces.pop()
            start -= len(piece)
            kept.append(piece)
        return "".join(reversed(kept))[place - start :]
