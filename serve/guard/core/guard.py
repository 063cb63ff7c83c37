"""The guard: takes an engine's chunks and returns those that may go to the client, over one or several attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from serve.config.guard import GuardConfig
from serve.errors import IntegrityError
from serve.guard.core.call_assembly import HeldCall
from serve.guard.core.call_check import CallCheck
from serve.guard.core.choice import AttemptGuard, ChoiceGuard
from serve.guard.core.chunk import UsageSum, choices_of, details_of, stop_of
from serve.guard.core.client_view import ClientView, Delta, Step, chunks_of
from serve.guard.core.expectation import Expectation
from serve.guard.core.live_prefix import sound_part
from serve.guard.core.verdict import Outcome, Severity, Verdict, delivered_at_last, tolerated
from serve.stream.ending import finish_of, gave_up, is_finish
from serve.stream.frame import ARGUMENTS, TextPlace, lone_delta

Chunk = dict[str, Any]
_ENVELOPE = ("id", "created", "model", "object", "system_fingerprint")


class GuardState(StrEnum):
    """Progress of an answer.

    `OPEN`: feed it. `RERUN`: this attempt is lost; `restart`, or `give_up` if there is no other pool. `FAILED`: so was
    the last; `give_up`. `DONE`: all has gone out.
    """

    OPEN = "open"
    RERUN = "rerun"
    FAILED = "failed"
    DONE = "done"


_OPEN = GuardState.OPEN  # compared for every token, and an attribute of an enum is slow to look up


class Guard:
    """Guards one answer.

    Feed every chunk of the engine's stream, then `finish`; send what comes back. When `state` becomes `RERUN`, stop
    reading, `restart`, and feed the chunks of the next pool's answer: the client sees one stream. `observe` mode
    returns every chunk as it is.

    Args:
        settings: Of the guard.
        request: The body of the chat request, as the client sent it.
        grammar: Format of the model's calls, if known; otherwise the markup itself tells.
        whole: True if nothing is sent before the answer is complete, so that a rerun replaces all but sound choices.
        live: Whether calls may go out while they grow, as far as they are right in any case.
        hasty: Whether an attempt ends once it is certain that it is not the last: somebody else is there to go on.

    Attributes:
        verdicts: One for each attempt that is over.
        answers: How many the request asks for.
        wants_usage: The client is to get the usage of all attempts.
        takes_long: Checking one call may take longer than other requests should wait, since the prompt is long.
        over: The answer is whole, although its engine goes on: `finish` ends it.
        resumed: The attempts so far that went on where another was cut.
    """

    def __init__(
        self, settings: GuardConfig, request: Mapping[str, Any], *, grammar: str | None = None, whole: bool = False,
        live: bool = False, hasty: bool = False,
    ) -> None:  # fmt: skip
        self.state = GuardState.OPEN
        self.over = False
        self.verdicts: list[Verdict] = []
        self.settings = settings
        self._observing = settings.mode == "observe"
        self._whole = whole
        # With `unclean` even the broken answer is wanted, and all of it.
        self._hasty = hasty and not whole and not self._observing and settings.on_failure == "error"
        self._live = live and not whole and not self._observing
        self._expected = Expectation(request, grammar)
        self.answers = self._expected.answers
        self.takes_long = settings.near_copies != "off" and self._expected.prompt.is_long
        self.wants_usage = whole or self._expected.wants_usage  # a whole answer always carries it
        self._attempt = AttemptGuard()
        self._views: dict[int, ClientView] = {}
        self._envelope: Chunk = {}
        self._usage = UsageSum()
        self._pool = ""
        self._is_late = False
        self._last: tuple[Chunk, Mapping[str, Any]] | None = None  # whose reason waits for the usage, and its choice
        self.resumed = 0
        self._kept_tokens = 0  # of those before the present attempt
        self._kept_from = ""  # the pool that wrote the last of them

    def sent(self, index: int = 0) -> ClientView:
        """Returns the client's view of a choice, made of what it has got so far."""
        if index not in self._views:
            self._views[index] = ClientView(str(self._envelope.get("id", "")), index)
        return self._views[index]

    def sound_part(self, tool: str, arguments: str) -> int:
        """Returns how many characters of a call's arguments, of which all or none may be right, begin right ones."""
        check, call = CallCheck(self._expected, self.settings, 0), HeldCall(0, name=tool)
        call.feed_arguments(arguments)
        if check.defect(call) is None:
            return len(arguments)
        outline = check.outline(tool)
        return 0 if outline is None else sound_part(outline, arguments)

    @property
    def response_id(self) -> str:
        """The id of the answer; empty until it is known."""
        return str(self._envelope.get("id") or "")

    @property
    def finished(self) -> bool:
        """True if each of them has ended, as far as its engine goes."""
        return not self._unfinished(done=False)

    @property
    def awaits_usage(self) -> bool:
        """True if a lost attempt is over but for its usage: reading on costs nothing and counts it."""
        lost = self.state in (GuardState.RERUN, GuardState.FAILED)
        over = lost and not self._unfinished() and not self._attempt.failed
        return over and self.wants_usage and not self._usage.reported

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole answer, as the client sees it."""
        if self.verdicts and self.verdicts[-1].outcome is Outcome.GUARD_ERROR:
            return Outcome.GUARD_ERROR
        if self.state is not GuardState.DONE:
            return Outcome.FAILED
        last = self.verdicts[-1]
        return Outcome.RERUN if len(self.verdicts) > 1 and last.good else last.outcome

    @property
    def report(self) -> dict[str, Any]:
        """The note to the client: reruns and why, and what is still wrong. Empty for an answer that was clean."""
        report: dict[str, Any] = {}
        reruns = self.verdicts if self.state is GuardState.OPEN else self.verdicts[:-1]
        if reruns:
            report["rerun"] = self._pool
            report["reasons"] = [str(verdict.outcome) for verdict in reruns]
            if self._kept_tokens:
                report |= {"resumed": self._kept_tokens, "from": self._kept_from}
            if self._usage.unreported and self.wants_usage:
                report["attempts_without_usage"] = self._usage.unreported
        unclean = {str(defect.outcome) for defect in self._attempt.defects() if defect.severity is not Severity.NOTE}
        if unclean:
            report["unclean"] = sorted(unclean)
        return report

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """Returns the chunks that may go out now."""
        if self.state is not GuardState.OPEN:
            self._usage.feed(chunk)
            return [chunk] if self._observing else []
        delta = lone_delta(chunk)
        if delta is not None and (text := self.feed_text(*delta)) is not None:
            if text == delta.text:
                return [chunk]
            return self._chunks(chunk, chunk["choices"][0], [Step(_delta_at(delta.place, text))]) if text else []
        chunks = self._feed_whole(chunk)
        if self._observing:
            return [chunk]
        if self._attempt.suspect:
            self._end_early()
        return chunks

    def feed_text(self, place: TextPlace, text: str) -> str | None:
        """Takes a chunk that holds nothing but more of one text, for callers that know that without parsing it.

        Args:
            place: Which text.
            text: What the engine adds to it; not empty.

        Returns:
            The text that goes out instead. None if nothing was done: `feed` the chunk.
        """
        index, field, call = place
        choice = self._attempt.choices.get(index)
        if choice is None or choice.ended or self.state is not _OPEN or (choice.defects and choice.broken):
            return None
        if field == ARGUMENTS:
            if (more := choice.calls.feed_arguments(call, text)) is None:
                return None
            ready = more
        elif self._views[index].first and not (choice.thinks and field == "content"):
            ready = choice.feed_text(field, text)
        else:
            return None
        if self._observing:
            return text
        if choice.defects:
            self._end_early()
        return ready

    def breaks(self, place: TextPlace) -> Callable[[str], object] | None:
        """Returns what finds the texts that do not go the way of the one before in their place; None if any may not.

        Where it finds nothing, a text goes out as it is, or is held, as that one was, and `feed_text` may get several
        of them later, as one.
        """
        return self._attempt.choices[place.choice].breaks(place) if self.state is _OPEN else None

    def finish(self, *, done: bool = True) -> list[Chunk]:
        """Ends the attempt where the engine's stream ends; returns the chunks that end the client's, if all is well.

        Args:
            done: The engine says that no answer is missing; otherwise each one that was asked for must have ended.
        """
        if self.state is not GuardState.OPEN:
            return []
        last = self._end_last()
        if self.over:
            template = {**self._envelope, "choices": [{"index": 0, "logprobs": None}]}
            last += self._chunks(template, template["choices"][0], self._attempt.choices[0].end())
        if self._unfinished(done=done) and not self._attempt.failed:
            self._attempt.fail(Outcome.TRUNCATED, "the stream ended without a finish_reason")
        lost = self._attempt.blocked and not self._observing
        self._end_attempt(lost=lost)
        return [] if lost or self._observing else [*last, *self._usage_chunk()]

    def broke(self, detail: str) -> list[Chunk]:
        """Ends the attempt where the engine's stream broke off, such as by a lost connection; otherwise as `finish`.

        The detail names the cause, for logs.
        """
        if self.state is GuardState.OPEN and self._last is None and self._unfinished(done=False):
            self._attempt.fail(Outcome.FAILED, detail)
        return self.finish()

    def restart(self, pool: str, kept_tokens: int = 0, broken_pool: str = "") -> None:
        """Prepares for another attempt at the same request.

        Args:
            pool: That it runs on, as the client will see.
            kept_tokens: Of the answer so far, with which the attempt begins; 0 for a rerun from the start.
            broken_pool: Where the attempt before it ran.

        Raises:
            ValueError: No rerun is due.
        """
        if self.state is not GuardState.RERUN:
            raise ValueError(f"nothing to rerun: the answer is {self.state}")
        self.state = GuardState.OPEN
        self.over = False
        self._pool = pool
        self._attempt = AttemptGuard()
        self._last = None
        if self._whole:
            self._views = {index: view for index, view in self._views.items() if view.finished}
            self._envelope = {}
        for view in self._views.values():
            view.restart()
        self._kept_tokens, self._kept_from = kept_tokens, broken_pool
        if kept_tokens:
            self.resumed += 1
            self._usage.resume()
        else:
            self._usage.restart()

    def give_up(self) -> list[Chunk]:
        """Ends the answer without a further attempt: as it is and marked, where that is allowed, or with an error.

        Raises:
            ValueError: The answer is not lost.
        """
        if self.state not in (GuardState.RERUN, GuardState.FAILED):
            raise ValueError(f"nothing to give up: the answer is {self.state}")
        if not self._may_leave_marked():
            self.state = GuardState.FAILED
            return [self.error().to_body()]
        self.state = GuardState.DONE
        chunks: list[Chunk] = []
        for index, choice in self._attempt.choices.items():
            if not self._views[index].finished:
                template = {**self._envelope, "choices": [{"index": index, "logprobs": None}]}
                chunks += self._chunks(template, template["choices"][0], choice.flush())
        return chunks + self._usage_chunk()

    def error(self) -> IntegrityError:
        """Returns the error for a client when no attempt was right."""
        outcomes = ", ".join(verdict.outcome for verdict in self.verdicts)
        advice = "The request's `stop` may have cut it." if self._attempt.perhaps_cut else "Please try again."
        return IntegrityError(f"The model's answer was broken ({outcomes}) and could not be repaired. {advice}")

    # One chunk

    def _feed_whole(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk of any shape."""
        if chunk.get("error") is not None:
            self._attempt.fail(Outcome.FAILED, "the engine sent an error")
        self._usage.feed(chunk)
        choices = choices_of(chunk)
        if choices is None and not self._attempt.failed:
            self._attempt.fail(Outcome.FAILED, "a malformed chunk")
        chunks = self._end_last() if self._usage.reported else []
        for choice in choices or ():
            self._envelope = self._envelope or {key: chunk[key] for key in _ENVELOPE if key in chunk}
            chunks += self._feed_choice(chunk, choice)
        return chunks

    def _feed_choice(self, chunk: Chunk, choice: Mapping[str, Any]) -> list[Chunk]:
        index = choice.get("index", 0)
        view = self.sent(index)
        guard = self._attempt.choices.get(index)
        if guard is None:
            if view.finished:
                return []  # an earlier attempt brought this choice to its end
            last = self._reruns >= self.settings.reruns
            suspected = any(verdict.suspects for verdict in self.verdicts)
            tolerates = tolerated(self.settings, last=last, suspected=suspected)
            guard = ChoiceGuard(
                index, self._expected, self.settings, view, tolerates,
                whole=self._whole, live=self._live, hasty=self._hasty,
            )  # fmt: skip
            self._attempt.choices[index] = guard
        if guard.broken or guard.ended:
            if guard.ended and (choice.get("delta") or {}).get("tool_calls") and not self._is_late:
                self._is_late = True  # the client has its finish reason: no call can follow, and no rerun replace it
                self._attempt.fail(Outcome.TRUNCATED, "a call came after the finish_reason")
            return []
        delta = choice.get("delta") or {}
        if not view.first:
            delta = view.renamed(delta)
        reason = choice.get("finish_reason") or None  # some servers write "" for null
        if reason is not None and not is_finish(reason):
            self._attempt.fail(Outcome.FAILED, f"the engine {gave_up(reason)}")
            reason = None
        elif reason is not None:
            reason = finish_of(reason)
        tokens = details_of(choice) if choice.get("logprobs") or choice.get("token_ids") else None
        if reason == "tool_calls" and self._expected.most_tokens is not None:
            chunks = self._chunks(chunk, choice, guard.feed(delta, None, None, tokens))
            self._last = chunk, choice
            waits = guard.lacks_end and not self._usage.reported
            return chunks if waits else [*chunks, *self._end_last()]
        steps = guard.feed(delta, reason, None if reason is None else stop_of(choice), tokens)
        only = len(steps) == len(chunk["choices"]) == 1 and view.first and choice.get("finish_reason") is None
        if only and steps[0] == Step(delta, None, (tokens,) if tokens else ()):
            return [chunk]
        return self._chunks(chunk, choice, steps)

    def _end_last(self) -> list[Chunk]:
        """Ends the choice whose reason waits for the usage, if there is one.

        vLLM up to 0.32 and others say `tool_calls` of a call that the limit of tokens has cut: only the usage tells.
        """
        if self._last is None:
            return []
        (chunk, choice), self._last = self._last, None
        guard = self._attempt.choices[choice.get("index", 0)]
        cut = guard.lacks_end and 0 < (self._expected.most_tokens or 0) <= self._usage.written
        return self._chunks(chunk, choice, guard.feed({}, "length" if cut else "tool_calls", stop_of(choice)))

    def _chunks(self, template: Chunk, choice: Mapping[str, Any], steps: Iterable[Step]) -> list[Chunk]:
        return chunks_of(steps, {**template, **self._envelope}, choice, lambda: self.report)

    # The end of an attempt

    @property
    def _reruns(self) -> int:
        """The attempts before this one that were broken and not gone on with."""
        return len(self.verdicts) - self.resumed

    def _end_early(self) -> None:
        """Ends the attempt if nothing can save it, and notes if the rest of it belongs to no answer."""
        if self._attempt.hopeless or (self._hasty and self._attempt.blocked):
            self._end_attempt(lost=True)
        else:
            self.over = self._attempt.over and self.answers == 1

    def _unfinished(self, *, done: bool = True) -> bool:
        """Returns True if a choice has not come to its end, in this attempt or an earlier one.

        Where the engine says that it is `done`, the choices that have begun are all.
        """
        choices = self._attempt.choices
        if not done and len(self._views) < self.answers:
            return True
        if any(not choice.ended for choice in choices.values()):
            return True
        return not self._views or any(not view.finished and i not in choices for i, view in self._views.items())

    def _end_attempt(self, *, lost: bool) -> None:
        refused = self.settings.unjudged == "refuse" and self._attempt.unjudged
        rerun = self._reruns < self.settings.reruns and not refused and not self._is_late
        verdict = self._attempt.verdict()
        # An answer of two pools says nothing of either.
        self.verdicts.append(replace(verdict, counts=False, by_length=False) if self._kept_tokens else verdict)
        if not lost:
            self.state = GuardState.DONE
        else:
            self.state = GuardState.RERUN if rerun else GuardState.FAILED

    def _may_leave_marked(self) -> bool:
        """Returns whether what the last attempt said may go out as it is, since no other attempt is to be had."""
        if self._attempt.failed or self._attempt.contradicts:
            return False
        if self.settings.unjudged == "refuse" and self._attempt.unjudged:
            return False
        severities = {defect.severity for defect in self._attempt.defects()}
        if self._hasty and self._unfinished():
            severities.add(Severity.HARD)  # there is no whole answer
        return severities <= delivered_at_last(self.settings)

    def _usage_chunk(self) -> list[Chunk]:
        usage = self._usage.total()
        if not self.wants_usage or usage is None:
            return []
        return [{**self._envelope, "choices": [], "usage": usage, **self._usage.extras}]


def _delta_at(place: TextPlace, text: str) -> Delta:
    """Returns the delta that adds a text in a place."""
    if place.field == ARGUMENTS:
        return {ARGUMENTS: [{"index": place.call, "function": {"arguments": text}}]}
    return {place.field: text}
