"""One request under way: counted while it lasts, and learned from when it is over."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from policies import Candidate
from policies.acceptance import Acceptance, AnswerLength
from policies.ranking import PoolLoad
from policies.step_model import StepModel
from serve.load.spec_report import LastFrames, completion_tokens, spec_report
from serve.stream.line import PASS, Stage

# Shorter answers are mostly prefill and waiting; their step times would be too long.
_LEARNED_STEPS = 50


class Table(NamedTuple):
    """Step times by batch as they were assumed before anything was learned, at a draft length."""

    step_s: Sequence[float]
    drafts: int


class LoadFigures(NamedTuple):
    """The figures of a candidate: the load of its pool, drafts and answers of such requests, and its step times."""

    load: PoolLoad
    drafts: Acceptance
    answers: AnswerLength
    steps: StepModel
    table: Table


class Sent:
    """A request under way. One with several answers does not count for what is learned: its tokens and steps say
    nothing.
    """

    __slots__ = ("_batch", "_candidate", "_clock", "_counts", "_length", "_place", "_posted_s", "_there", "response")

    def __init__(
        self,
        place: Callable[[Candidate], LoadFigures],
        candidate: Candidate,
        clock: Callable[[], float] = time.monotonic,
        counts: bool = True,
    ) -> None:
        self.response: LastFrames | None = None
        self._place = place
        self._clock = clock
        self._counts = counts
        self._posted_s = clock()
        self._begin(candidate)

    def last_frames(self) -> LastFrames:
        """Returns a stage that keeps what can be learned from the response that has begun."""
        self.response = kept = LastFrames()
        return kept

    def posted(self, candidate: Candidate) -> None:
        """Tells that the request has a slot and goes out, maybe to another candidate than the first."""
        if candidate is not self._candidate:
            self._there.load.end(self._length)
            self._begin(candidate)
        self._posted_s = self._clock()
        self._batch = self._there.load.per_engine

    def end(self) -> None:
        """Counts the end of the request, and learns from its response."""
        load = self._there.load
        batch = max(1.0, (self._batch + load.per_engine) / 2)
        load.end(self._length)
        if self.response is None or not self._counts:
            return
        last = list(self.response.last)
        report, tokens = spec_report(last), completion_tokens(last)
        if report is not None:
            self._there.drafts.learn(report.steps, report.accepted)
            tokens = report.steps + report.accepted if tokens is None else tokens
        if tokens:
            self._there.answers.learn(tokens)
        table = self._there.table
        # Without drafts a token is a step; an engine that drafts says how many steps it took.
        steps = report.steps if report is not None else None if table.drafts else tokens
        if steps is not None and steps >= _LEARNED_STEPS:
            observed_s = (self._clock() - self._posted_s) / steps
            self._there.steps.learn(batch, observed_s / table.step_s[min(round(batch), len(table.step_s) - 1)])

    def _begin(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._there = self._place(candidate)
        self._length = self._there.drafts.length
        self._there.load.begin(self._length)
        self._batch = self._there.load.per_engine


class NullSent:
    """A request that is not counted; see `Sent`."""

    __slots__ = ()

    def posted(self, candidate: Candidate) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""

    def last_frames(self) -> Stage:
        """Returns a stage that keeps nothing."""
        return PASS


NULL_SENT = NullSent()
AnySent = NullSent | Sent
