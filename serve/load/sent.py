"""One request under way: counted while it lasts, and learned from when it is over."""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from policies import Candidate
from policies.acceptance import Acceptance, AnswerLength
from policies.ranking import PoolLoad
from policies.step_times import StepModel
from serve.stream.frame import Frame
from serve.stream.line import PASS, Stage

# vLLM (`per-request-spec-decode-metrics`) and our simulated engine report on their drafts in the last chunk of a stream
# that carries usage, and in every whole response. The report is found there without decoding the rest: within a JSON
# string the quotes would be escaped, so that no text of a model can imitate the member.
_MEMBER = b'"speculative_decoding":'
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d{1,9})\b')
_DECODER = json.JSONDecoder()
_LONGEST = 4096
_FRAMES = 4  # enough for a stream's last chunk and its end
_END_BYTES = 256 * 1024
_MOST = 10**9  # no answer has as many tokens
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]


# Shorter answers are mostly prefill and waiting; their step times would be too long.
_LEARNED_STEPS = 50


class _Told(msgspec.Struct):
    num_spec_steps: Annotated[int, msgspec.Meta(gt=0, lt=_MOST)]
    num_accepted_draft_tokens: _Count
    num_draft_tokens: _Count


class LastFrames(Stage):
    """Keeps the end of a response, in which an engine reports.

    Attributes:
        last: The last frames, or the end of a whole answer.
    """

    def __init__(self) -> None:
        self.last: deque[bytes] = deque(maxlen=_FRAMES)

    def skim(self, data: bytes, frames: int) -> None:
        self.last.append(data)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        self.last.append(frame.raw)
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Keeps the end of a whole answer."""
        self.last.append(body[-_END_BYTES:])
        return body


class SpecReport(NamedTuple):
    """The drafts of one request."""

    steps: int
    accepted: int


def completion_tokens(parts: Iterable[bytes]) -> int | None:
    """Returns the length of the answer as the usage in the last parts of a response states it; None without usage."""
    found = _TOKENS.findall(b"".join(parts))
    return int(found[-1]) if found else None


def spec_report(parts: Iterable[bytes]) -> SpecReport | None:
    """Returns the report in the last parts of a response; None if there is none, or no draft was made."""
    data = b"".join(parts)
    start = data.rfind(_MEMBER)
    if start < 0:
        return None
    start += len(_MEMBER)
    text = data[start : start + _LONGEST].lstrip().decode("utf-8", "replace")
    try:
        found, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # cut off, or not the engine's
        return None
    try:
        reply = msgspec.convert(found, _Told)
    except msgspec.ValidationError:
        return None
    accepted = reply.num_accepted_draft_tokens
    return SpecReport(reply.num_spec_steps, accepted) if accepted <= reply.num_draft_tokens else None


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
