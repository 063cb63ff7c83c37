"""The protocol of a state that gateway replicas share: a `Reporter` on each, and one `Register` in an actor. No I/O.

- A replica has one report under way at a time. It is numbered and sent again until it is answered; whatever happens
  meanwhile stays where it was counted, for the next one.
- The register books each number once. It keeps the last answer to each replica, so a report that comes again because
  its answer was lost gets the same one: what an answer gives is given once, and what a replica holds is never in doubt.
- A register that begins settles first, and answers nobody. Where replicas keep its state, it asks those who have seen
  it and goes on from the newest; otherwise it books what they report. Versions of answers never go down for anybody.
- A replica that gets no answer is alone. What that means is for the user of the protocol to say.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from serve.errors import SharedStateError

SETTLE_S = 2.5  # in which every replica that lives reports at least twice
_LOGGED_EVERY_S = 60.0  # at most: a register that is too slow falls silent several times a second
_MOST_REPLICAS = 1024  # whose last number and answer are kept

Content = TypeVar("Content")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Acknowledgement(Generic[State]):
    """A register's answer to one report.

    Attributes:
        version: Counts the register's changes.
        booked: Number of each replica's last report in the state, for a register that goes on from it.
    """

    number: int
    version: int
    state: State
    booked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report(Generic[Content, State]):
    """A replica's report.

    Attributes:
        replica: A name that no other replica ever has.
        number: Counts up from 1.
        seen: Version of the newest answer that the replica has adopted; 0 if there was none.
        age_s: Seconds since that answer, when this was sent; None if there was none.
        known: That answer, if the register has asked for it.
    """

    replica: str
    number: int
    content: Content
    seen: int = 0
    age_s: float | None = None
    known: Acknowledgement[State] | None = None


class Pending(NamedTuple):
    """A register's reply while it can't answer yet.

    Attributes:
        wants_state: The replica knows a newer state than the register, which asks for it.
        is_booked: The report was booked all the same, and must not be sent again.
    """

    wants_state: bool = False
    is_booked: bool = False


class Reporter(Generic[Content, State]):
    """One replica's end. `send` reaches the register, or raises `SharedStateError`; `collect` returns what was counted
    since it was called last, and `adopt` takes the state of an answer over. The log calls the register by the noun, and
    says in a sentence what the replica does meanwhile without it.

    Attributes:
        is_settling: It has just begun and is going to.
    """

    def __init__(
        self,
        send: Callable[[Report[Content, State]], Awaitable[Acknowledgement[State] | Pending]],
        collect: Callable[[], Content],
        adopt: Callable[[State], None],
        noun: str,
        meanwhile: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replica = uuid.uuid4().hex
        self.alone = False
        self.is_settling = False
        self._send = send
        self._collect = collect
        self._adopt = adopt
        self._noun = noun
        self._meanwhile = meanwhile
        self._log = log
        self._clock = clock
        self._answered_s = clock()
        self._number = 0
        self._unanswered: list[Content] = []  # one at the most
        self._known: Acknowledgement[State] | None = None
        self._logged = False
        self._logged_s = -math.inf
        self._lock = asyncio.Lock()

    @property
    def age_s(self) -> float:
        """Seconds since the register's last answer, or since the start if there was none."""
        return self._clock() - self._answered_s

    @property
    def seen(self) -> int:
        """The version of the newest answer that was adopted; 0 if there was none."""
        return 0 if self._known is None else self._known.version

    async def sync(self) -> bool:
        """Sends what is not answered yet and then what was counted since; returns True if all of it was answered."""
        async with self._lock:
            while True:
                again = bool(self._unanswered)
                try:
                    reply = await self._send(self._next())
                    if isinstance(reply, Pending) and reply.wants_state:
                        reply = await self._send(self._next(with_state=True))
                except SharedStateError as error:
                    self.lost(error)
                    return False
                if isinstance(reply, Pending):
                    self.alone = self.is_settling = True
                    if reply.is_booked:
                        self._unanswered.clear()
                        if again:
                            continue
                    return False
                if reply.number != self._number:
                    return False  # to an earlier report, which was answered before
                self._answered(reply)
                if not again:
                    return True

    def adopt(self, answer: Acknowledgement[State]) -> None:
        """Adopts an answer, to a report or to anything else that changed the state; never one older than the last."""
        if answer.version >= self.seen:
            self._known = answer
            self._adopt(answer.state)

    def lost(self, error: SharedStateError) -> None:
        """Notes that the register does not answer; what it says later counts all the same."""
        if not self._logged and self._clock() - self._logged_s > _LOGGED_EVERY_S:
            self._log.warning("%s %s%s", error, self._meanwhile, f" {error.__cause__!r}" if error.__cause__ else "")
            self._logged, self._logged_s = True, self._clock()
        self.alone, self.is_settling = True, False

    def _next(self, *, with_state: bool = False) -> Report[Content, State]:
        """Returns the report to send now: the one without an answer once more, or a new one."""
        if not self._unanswered:
            self._number += 1
            self._unanswered.append(self._collect())
        age_s = None if self._known is None else self.age_s
        known = self._known if with_state else None
        return Report(self.replica, self._number, self._unanswered[0], self.seen, age_s, known)

    def _answered(self, answer: Acknowledgement[State]) -> None:
        self._unanswered.clear()
        self._answered_s = self._clock()
        self.alone = self.is_settling = False
        if self._logged:
            self._log.warning("%s is back", self._noun)
            self._logged = False
        self.adopt(answer)


@dataclass(slots=True)
class _Booked:
    """A replica's last report: its number, and the answer if there was one."""

    number: int
    answer: Acknowledgement[Any] | None = None


class Register(Generic[Content, State]):
    """The actor's end. `book` takes a report's content over, once for each number, and `answer` then returns the state
    that its sender gets; it may be called again if it raised `SharedStateError`. `restore` takes over a state that
    replicas have kept; None if none is kept. Nothing is answered in the first `settle_s`.
    """

    def __init__(
        self,
        book: Callable[[Report[Content, State]], None],
        answer: Callable[[Report[Content, State]], Awaitable[State]],
        restore: Callable[[State], None] | None = None,
        settle_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._answer = answer
        self._restore = restore
        self._clock = clock
        self._settled_s = clock() + settle_s
        self._version = 0
        self._last: dict[str, _Booked] = {}
        self._newest: Acknowledgement[State] | None = None
        self.has_begun = False

    async def take(self, report: Report[Content, State]) -> Acknowledgement[State] | Pending:
        """Books a report, unless it was booked before, and returns its answer.

        Raises:
            SharedStateError: From `answer`.
        """
        if not self.has_begun and (pending := self._begin(report)) is not None:
            return pending
        last = self._once(report)
        if report.number < last.number:
            return Pending()  # it was overtaken; whoever sent it has its answer
        if last.answer is None:
            state = await self._answer(report)
            last.answer = self.changed(state, report.number, report.seen)
        return last.answer

    def offer(self, answer: Acknowledgement[State]) -> None:
        """Takes a state that was kept somewhere, unless a newer one is known."""
        if self._newest is None or answer.version > self._newest.version:
            self._newest = answer

    def changed(self, state: State, number: int = 0, seen: int = 0) -> Acknowledgement[State]:
        """Returns an answer with the state as it is now, newer than any before it."""
        self._version = max(self._version, seen) + 1
        kept = self._restore is not None
        return Acknowledgement(number, self._version, state, self.booked if kept else {})

    @property
    def booked(self) -> dict[str, int]:
        """The number of each replica's last report."""
        return {replica: last.number for replica, last in self._last.items()}

    def _begin(self, report: Report[Content, State]) -> Pending | None:
        """Returns None once every replica that lives had the time to say what it knows."""
        if report.known is not None:
            self.offer(report.known)
        newest = 0 if self._newest is None else self._newest.version
        if self._restore is not None and report.seen > newest:
            return Pending(wants_state=True)
        if self._clock() < self._settled_s:
            if self._restore is not None:
                return Pending()
            self._once(report)
            return Pending(is_booked=True)
        self.has_begun = True
        if self._newest is not None and self._restore is not None:
            self._restore(self._newest.state)
            self._version = self._newest.version
            self._last = {replica: _Booked(number) for replica, number in self._newest.booked.items()}
        return None

    def _once(self, report: Report[Content, State]) -> _Booked:
        """Books a report unless it was booked before; returns the replica's last one."""
        last = self._last.pop(report.replica, None) or _Booked(0)
        self._last[report.replica] = last  # at the end: the longest silent is the first
        if report.number > last.number:
            self._book(report)
            last.number, last.answer = report.number, None
            if len(self._last) > _MOST_REPLICAS:
                del self._last[next(iter(self._last))]
        return last
