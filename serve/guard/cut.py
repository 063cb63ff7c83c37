"""Where a broken answer is cut so that another engine can go on with it.

Damage begins before it is seen. So the first cut is at the last structural boundary before it, the second one further
back, and then the request runs again from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from serve.guard.core import Outcome
from serve.parsing import CallEnd, CallStart, Content, Event, Reasoning, StreamParser
from serve.parsing.machine import State


class Cut(StrEnum):
    """A place in an answer.

    `END`: where it broke off. `CALL`: before the call that is damaged. `CLIENT`: where the client is, which has got
    nothing behind the beginning of a leaked marker. `BEFORE`: a boundary before the one of the first cut.
    """

    END = "end"
    CALL = "call"
    CLIENT = "client"
    BEFORE = "before"


# By what was found: where the first resume goes on, and where the second one does.
CUTS: Mapping[Outcome, tuple[Cut, Cut]] = {
    Outcome.FAILED: (Cut.END, Cut.END),
    Outcome.TRUNCATED: (Cut.END, Cut.CALL),
    Outcome.INVALID_JSON: (Cut.CALL, Cut.BEFORE),
    Outcome.SCHEMA_MISMATCH: (Cut.CALL, Cut.BEFORE),
    Outcome.UNKNOWN_TOOL: (Cut.CALL, Cut.BEFORE),
    Outcome.MARKER_LEAK: (Cut.CLIENT, Cut.BEFORE),
}
MOST_RESUMES = 2
MOST_LOSSES = 8  # of engines of one answer, as long as each has added to it


def may_resume(outcome: Outcome, resumed: int, *, grew: bool) -> bool:
    """Returns whether a broken answer may go on elsewhere once more.

    An answer that takes every engine with it at the same place must not be given to all of them.

    Args:
        outcome: What was wrong with it.
        resumed: How often it has gone on already.
        grew: The last engine has added to it.
    """
    return resumed < (MOST_LOSSES if outcome is Outcome.FAILED and grew else MOST_RESUMES)


class Had(NamedTuple):
    """The part of an answer that a client has.

    Attributes:
        reasoning: What it has of this text.
        content: What it has of this one.
        calls: The names of the tools that it was told to call.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[str, ...] = ()


NOTHING_HAD = Had()


class Run(NamedTuple):
    """A stretch of a text in which no call is open.

    Attributes:
        end: Where it ends, in characters.
        calls: That began before it.
    """

    end: int
    calls: int


class Boundaries(NamedTuple):
    """The places of a text at which it can be cut.

    Attributes:
        runs: In their order.
        calls: That began in the text.
        client: The first place that has all that the client has; None if there is none.
    """

    runs: tuple[Run, ...]
    calls: int
    client: int | None

    def place(self, cut: Cut, call: int) -> int | None:
        """Returns where to cut, in characters; None if there is no such place behind what the client has.

        Args:
            cut: Any but `END`.
            call: The first that is damaged.
        """
        if self.client is None:
            return None
        if cut is Cut.CLIENT:
            return self.client
        if self.calls <= call:  # we do not see the call that the engine saw
            return None
        ends = [run.end for run in self.runs if run.calls <= call and run.end >= self.client]
        wanted = 2 if cut is Cut.BEFORE else 1
        return ends[-wanted] if len(ends) >= wanted else None


def boundaries(parser: StreamParser, text: str, had: Had) -> Boundaries:
    """Returns the places of a text at which it can be cut.

    Args:
        parser: Of the text; new.
        text: An answer, raw.
        had: What the client has of it.
    """
    walk = _Walk(had)
    machine = parser.machine
    for place, character in enumerate(text):
        if machine.resumable:
            walk.pass_by(place, machine.state)
        elif not machine.held:
            walk.state = None
        walk.take(parser.feed(character))
    return Boundaries(tuple(walk.runs), walk.calls, walk.client)


class _Walk:
    """A walk over a text, place by place.

    Attributes:
        runs: Those so far.
        calls: Those that began so far.
        client: The first place that has all that the client has.
        state: The parser's, at the last place where no call was open; None if one has begun since.
    """

    def __init__(self, had: Had) -> None:
        self.runs: list[Run] = []
        self.calls = 0
        self.client: int | None = None
        self.state: State | None = None
        self._reasoning, self._content = _Length(had.reasoning), _Length(had.content)
        self._calls_left = len(had.calls)

    def pass_by(self, place: int, state: State) -> None:
        """Notes a place where no call is open."""
        had_all = self._reasoning.reached and self._content.reached and self._calls_left <= 0
        if self.client is None and had_all:
            self.client = place
        run = Run(place, self.calls)
        if state is self.state:
            self.runs[-1] = run
        else:
            self.runs.append(run)
        self.state = state

    def take(self, events: Iterable[Event]) -> None:
        """Notes what the next character has brought."""
        for event in events:
            match event:
                case Reasoning(more):
                    self._reasoning.add(more)
                case Content(more):
                    self._content.add(more)
                case CallStart():
                    self.calls += 1
                    self.state = None
                case CallEnd():
                    self._calls_left -= 1


class _Length:
    """Compares the length of a text that is written with that of one that went out, but for the space around either."""

    def __init__(self, had: str) -> None:
        self._wanted = len(had.strip())
        self._written = 0

    @property
    def reached(self) -> bool:
        return self._written >= self._wanted

    def add(self, text: str) -> None:
        self._written += len(text) if self._written else len(text.lstrip())


def joined(had: str, text: str, held: str = "") -> str | None:
    """Returns a text as one that goes on where the client is; None if the client has something else.

    Engines and we do not always agree on the space between reasoning, text and calls.

    Args:
        had: What the client has of it.
        text: As we read it.
        held: What we hold back behind it.
    """
    behind = had.lstrip()
    if not behind:
        return had + text.lstrip() if had else text
    own = text.lstrip()
    if not (own + held).startswith(behind.rstrip()):
        return None
    return had[: len(had) - len(behind)] + own
