"""Tells calls that a model makes in the middle of its thoughts from those that it only drafts there.

Models may forget to end their thoughts before they call a tool, and they write calls down while they plan them. Behind
a call that is meant nothing follows but further calls and the end of the thoughts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from serve.parsing.events import CallStart, Content, Event, Fault
from serve.parsing.parser import StreamParser

_STEPS = re.compile(r"[^>\]]*[>\]]|[^>\]]+")  # each with one marker at most, and nothing behind it


class DraftingParser:
    """One choice of one request, as of `StreamParser`: what begins as a call in thoughts waits until it is none or one.

    A draft is a part of the thoughts, with all its markup. Formats whose thoughts have a channel of their own have no
    such doubt. `open_` makes a parser at the beginning of the output.
    """

    def __init__(self, open_: Callable[[], StreamParser]) -> None:
        self._open = open_
        self._parser = open_()
        self._settled = "end_think" not in self._parser.machine.lexicon.kinds.values()
        self._pieces: list[str] = []  # of the output behind the last draft
        self._length = self._begin = 0  # of the output so far, and where these begin
        self._behind_marker = 0  # the place; what no marker is may come in any pieces
        self._held: list[Event] | None = None  # from the end on that a call has made of the thoughts

    def feed(self, text: str) -> list[Event]:
        """Returns the events of a piece of the output."""
        if self._settled:
            return self._parser.feed(text)
        if ">" not in text and "]" not in text:  # as nearly always
            return self._step(text)
        return [event for step in _STEPS.findall(text) for event in self._step(step)]

    def finish(self) -> list[Event]:
        """Returns the events of what was held back."""
        events = self._sift(self._parser.finish())
        if self._held is None:
            return events
        held, self._held = self._held, None
        return events + held

    def _step(self, text: str) -> list[Event]:
        if self._settled:
            return self._parser.feed(text)
        self._pieces.append(text)
        self._length += len(text)
        events = self._parser.feed(text)
        machine = self._parser.machine
        if machine.reasoning_end is not None or machine.out.calls or not machine.out.wrote_reasoning:
            events = self._sift(events)  # else they are of thoughts that go on
        if text.endswith((">", "]")):
            self._behind_marker = self._length
        return events

    def _sift(self, events: list[Event]) -> list[Event]:
        """Returns what may go out, once a step has brought events."""
        machine = self._parser.machine
        if machine.reasoning_end is None:
            if machine.out.wrote_content or machine.out.calls:
                self._settle()
            return events
        ready: Sequence[Event] = ()
        if self._held is None:
            if not machine.open_thought and not machine.out.calls:
                self._settle()
                return events
            ready, self._held = events[: machine.reasoning_events], []
            events = events[machine.reasoning_events :]
        self._held += events
        words = self._words(events)
        if words is not None and any(isinstance(event, CallStart) for event in self._held):
            return [*ready, *self._think_on(machine.reasoning_end, words)]
        if words is None and machine.open_thought:
            return list(ready)
        held = self._held
        self._settle()
        return [*ready, *held]

    def _settle(self) -> None:
        self._settled, self._held, self._pieces = True, None, []

    def _words(self, events: Sequence[Event]) -> int | None:
        """Returns the place from which on there is more than calls; None if there is nothing more."""
        for event in events:
            if isinstance(event, Content) and not event.text.isspace():
                return self._behind_marker
            if isinstance(event, Fault) and event.violation.kind == "stray_text" and event.violation.index is None:
                return event.violation.position
        return None

    def _think_on(self, start: int, end: int) -> list[Event]:
        """Makes a draft a part of the thoughts, and reads on behind it."""
        text, begin = "".join(self._pieces), self._begin
        self._held, self._pieces = None, []
        self._length = self._begin = self._behind_marker = end
        self._parser = self._open()
        self._parser.machine.think_on(text[start - begin : end - begin], end)
        return self.feed(text[end - begin :])
