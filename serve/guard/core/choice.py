"""One choice in one attempt, and the attempt as all of its choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.call_check import CallCheck
from serve.guard.core.call_guard import CallGuard
from serve.guard.core.chunk import UNSAID, TokenDetails, of_last_characters
from serve.guard.core.client_view import ClientView, Delta, Step
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import is_residue
from serve.guard.core.rescue import Rescued, goes_on, is_shown, rescue
from serve.guard.core.shape import AHEAD, CHANNELS, MarkerShape, calls_a_tool
from serve.guard.core.text_guard import TextGuard
from serve.guard.core.verdict import Defect, DefectLog, Outcome, Severity, Verdict, gravest
from serve.stream.frame import ARGUMENTS, TEXTS, TextPlace

_CUTS = ("length", "content_filter")  # finish reasons of what ends anywhere, and none of an engine's faults
_OF_ARGUMENTS = re.compile(r"arg_|param|argument")  # in the markers of arguments, whatever the format


class ChoiceGuard:
    """Takes one choice's deltas and returns those that may go out. Its view outlives the attempt.

    Attributes:
        log: All that was found so far, of which `defects` is the list.
        cut: True if a filter ended the choice, or the request's own limits: its length, or a text at which to stop.
        ended: True once a finish reason has come.
        thinks: True if the text that came last is a thought, of which an end may wait.
    """

    def __init__(
        self, index: int, expectation: Expectation, settings: GuardConfig, view: ClientView,
        tolerates: frozenset[Severity], *, whole: bool = False, live: bool = False, hasty: bool = False,
    ) -> None:  # fmt: skip
        self.cut = False
        self.ended = False
        self.thinks = False
        self._expected = expectation
        self._settings = settings
        self._view = view
        self._whole = whole
        self._reason: str | None = None
        self._stop: Any = None
        self._refused = False  # in words of a field of their own
        self._tokens: list[TokenDetails] = []  # of chunks of which nothing has gone out or is held as a call
        self.log = log = DefectLog(index, tolerates)
        self.defects = log.defects
        self._check = CallCheck(expectation, settings, index)
        self.calls = CallGuard(self._check, view, log, single=expectation.single, live=live, hasty=hasty)
        self._texts = TextGuard(expectation, settings, view, log)

    @property
    def by_length(self) -> bool:
        """True if the limit of tokens ended the choice."""
        return self._reason == "length"

    @property
    def perhaps_cut(self) -> bool:
        """True if the request asked to stop at a text, and the engine does not say whether it did."""
        return self._stop is UNSAID and self._expected.may_stop

    @property
    def lacks_end(self) -> bool:
        """True if it looks as if the limit of tokens had cut a call, in whatever form."""
        return self.calls.perhaps_cut or self._texts.leaking

    @property
    def broken(self) -> bool:
        """True if nothing can save this attempt."""
        return bool(self.defects) and self.log.broken  # most answers have none, and every chunk asks

    @property
    def over(self) -> bool:
        """True if nothing will come that belongs to the answer, although the engine goes on."""
        return bool(self.defects) and self._texts.over and not self.ended

    def end(self) -> list[Step]:
        """Ends a choice that is `over`."""
        return self._finish("stop")

    def feed(
        self,
        delta: Mapping[str, Any],
        finish_reason: str | None,
        stop: Any = None,
        tokens: TokenDetails | None = None,
    ) -> list[Step]:
        """Returns what may go out now; the finish reason and what `stop_of` returns come with the last delta."""
        if finish_reason is not None:
            self._reason, self._stop = finish_reason, stop
            self.cut = finish_reason in _CUTS or (stop is not None and self._expected.stops_at(stop))
        if tokens is not None:
            self._tokens.append(tokens)
        first = self._view.first
        ready: Delta = {}
        for name, value in delta.items():
            if name in TEXTS and isinstance(value, str):
                repeats = self._tokens and self._view.repeats(name)
                if (text := self.feed_text(name, value)) or (value == "" and first):
                    ready[name] = text
                if repeats:
                    self._skip_tokens(name, text)
            elif name in TEXTS and value is not None:
                self.log.report(Outcome.FAILED, f"{name} that is no text", once=True)
            elif name != "tool_calls" and first:
                ready[name] = value
                self._refused = self._refused or (name == "refusal" and bool(value))
        ready = self._with_ends(ready, delta)
        steps = [Step(ready, None, self._take_tokens())] if ready else []
        if entries := delta.get("tool_calls"):
            steps += self._feed_calls(entries)
        return steps if finish_reason is None else steps + self._finish(finish_reason)

    def _with_ends(self, ready: Delta, delta: Mapping[str, Any]) -> Delta:
        """Returns what may go out of the texts, with the ends of those behind which a delta begins something else."""
        calls = bool(delta.get("tool_calls"))
        if not (calls or (self.thinks and delta.get("content"))):
            return ready
        self.thinks = False
        ends = {name: (ready.get(name) or "") + end for name, end in self._texts.pause(calls=calls).items()}
        return ready | ends if ends else ready

    def _feed_calls(self, entries: Iterable[Any]) -> list[Step]:
        steps: list[Step] = []
        for entry in entries:
            self.calls.feed(entry)
            if self._tokens and self.calls.keep_tokens(self._tokens):
                self._tokens = []
            if self._texts.leaking:  # a call that was lost before this one; the client must not get them out of order
                self._report_lost()
            if not self._drafted:
                steps += self.calls.ready()
        return steps

    @property
    def _drafted(self) -> list[str]:
        """The names of the thoughts that hold a call, which may be a draft of those that the answer makes."""
        if not self._texts.leaking:
            return []
        return [name for name in TEXTS if name != "content" and self._texts.shape(name) is MarkerShape.CALL]

    def feed_text(self, name: str, text: str) -> str:
        """Returns the part of what the engine adds to a text that may go out."""
        if name != "content":
            self.thinks = True
        ready = self._texts.feed(name, text)
        if self._texts.leaking:
            self._report_lost()
        return ready

    def breaks(self, place: TextPlace) -> Callable[[str], object] | None:
        """Returns what finds the texts that do not go the way of the one before; None if any may not."""
        if self.defects:
            return None
        return self.calls.breaks(place.call) if place.field == ARGUMENTS else self._texts.breaks(place.field)

    def _report_lost(self) -> None:
        """Reports the texts that hold a lost call."""
        for name in TEXTS:
            if self._is_lost(name):
                self._report_leak(name, is_certain=not is_shown(self._texts.tail_of_leak(name)))

    def _report_leak(self, name: str, *, is_certain: bool) -> None:
        severity = Severity.HARD if is_certain else Severity.SUSPECT
        self.log.report(Outcome.MARKER_LEAK, f"markup in {name}", severity, once=True)

    def _is_lost(self, name: str) -> bool:
        """Returns whether a text holds a call that nothing that may follow would make right."""
        if self._texts.shape(name) is not MarkerShape.CALL or self.cut or self._may_be_rescued or name in self._drafted:
            return False
        return calls_a_tool(self._texts.head_of_leak(name), self._expected.tools)

    def flush(self) -> list[Step]:
        """Returns everything that was held back, right or wrong, and the finish reason."""
        texts = self._texts.flush()
        steps = [Step(texts, None, self._take_tokens())] if texts else []
        steps += self.calls.flush()
        steps += self._view.finish(complete=False)
        return [*steps, Step({}, self._final_reason(self._reason or "stop"), self._take_tokens())]

    def _finish(self, reason: str) -> list[Step]:
        if self.by_length and self._texts.repetitive:
            severity = Severity.SUSPECT if self._whole else Severity.NOTE  # the client of a stream has it already
            self.log.report(Outcome.REPETITION, "a text without end", severity)
        texts = self._texts.finish(cut=self.cut, called=self.calls.begun or self._refused)
        steps = [Step(texts, None, self._take_tokens())] if texts else []
        steps += self._finish_drafts()
        steps += self.calls.finish(cut=self.cut, by_length=reason == "length")
        for name, leak in self._texts.leaks().items():
            steps += self._finish_leak(name, leak)
        silence = self._silence(reason)
        if silence is not None and not self._texts.leaking:
            severity, detail = silence
            self.log.report(Outcome.EMPTY_WHEN_REQUIRED, detail, severity, once=True)
        if not self.log.blocked:
            steps += self._view.finish(complete=reason != "length" and self._expected.document is None)
            steps.append(Step({}, self._final_reason(reason), self._take_tokens()))
        self.ended = True  # last: what raised before is an attempt without an end, and never one that is done
        return steps

    def _take_tokens(self) -> tuple[TokenDetails, ...]:
        """Returns the tokens that wait for what they belong to, because that goes out now."""
        if not self._tokens:
            return ()
        taken = tuple(self._tokens)
        self._tokens = []
        return taken

    def _skip_tokens(self, name: str, sent: str) -> None:
        """Drops the tokens of a rerun's text that the client has already, or keeps them with a text that may follow."""
        tokens = self._take_tokens()
        if self._view.diverged(name):
            if name == "content":
                self._view.keep_tokens(tokens)
        elif sent:
            self._tokens.append(of_last_characters(tokens[-1], len(sent)))

    def _finish_drafts(self) -> list[Step]:
        """Returns the thoughts that hold drafts of calls; reports the calls in them that are none, before others go."""
        steps: list[Step] = []
        for name in self._drafted if self.calls.begun or self._texts.spoke else ():
            leak = self._texts.leaks()[name]
            if self._is_draft(leak):
                ready = self._texts.acquit(name)
                steps.append(Step({name: ready}, None, self._take_tokens()))
            elif self.calls.begun and not self.cut and calls_a_tool(leak, self._expected.tools):
                self._report_leak(name, is_certain=not is_shown(leak))
        return steps

    def _is_draft(self, leak: str) -> bool:
        """Returns whether the calls in thoughts are no lost ones: the model thought on, or made the very same calls.

        Models often write a call down while they plan it. Only a whole one is a draft: what damage cut is not.
        """
        drafts = rescue(leak, self._expected, self._check)
        return drafts is not None and (goes_on(leak) or all(map(self.calls.makes, drafts.calls)))

    def _finish_leak(self, name: str, leak: str) -> list[Step]:
        """Returns what may go out of leaked markup: the calls in it, or its text if the attempt is past saving."""
        is_call = self._texts.shape(name) is MarkerShape.CALL
        residue = is_residue(leak)
        if residue and self.calls.begun and not (self.calls.any_stripped and _OF_ARGUMENTS.search(leak)):
            self.log.report(Outcome.MARKER_LEAK, f"markup beside the calls in {name}", Severity.NOTE, once=True)
            return []
        opens_turn = name == "content" and not self.cut and leak.startswith(CHANNELS)  # and may go on with a call
        possible = (is_call or opens_turn) and self._may_be_rescued
        ends_turn = not is_shown(leak)
        if possible or self.cut:
            rescued = rescue(leak, self._expected, self._check, cut=self.cut)
            if rescued is not None:
                ends_turn = is_residue(rescued.content)
                if ends_turn and (possible or not rescued.calls):
                    return self._take_rescued(rescued)
        if not (self.cut and residue and len(leak) < AHEAD):  # the limit may have cut a sentence there
            silence = self._silence(self._reason or "stop")
            certain = is_call and ends_turn and calls_a_tool(leak, self._expected.tools)
            certain = certain or (silence is not None and silence[0] is Severity.HARD)
            self._report_leak(name, is_certain=certain)
        return [] if self.log.blocked else [Step({name: self._view.feed_text(name, leak)}, None, self._take_tokens())]

    def _take_rescued(self, rescued: Rescued) -> list[Step]:
        if rescued.is_cut:
            self.log.report(Outcome.TRUNCATED, "a call was cut by the request's own limits", Severity.NOTE)
        if not rescued.calls:
            return []
        self.log.report(Outcome.RESCUED, "calls read from leaked markup", Severity.NOTE)
        rescued.calls[0].tokens.extend(self._take_tokens())
        return self.calls.rescue(rescued.calls)

    def _silence(self, reason: str) -> tuple[Severity, str] | None:
        """Returns severity and detail of what an answer lacks that ended for a reason; None if it lacks nothing."""
        if self.calls.begun or self.cut or self._refused:
            return None
        if self._expected.calls_required or reason == "tool_calls":
            return Severity.HARD, "no call where one was required"
        if self._expected.tools and not self._texts.spoke and self._expected.silence_is_odd:
            return Severity.SOFT, "neither text nor call"
        return None

    @property
    def _may_be_rescued(self) -> bool:
        return self._settings.rescue and bool(self._expected.tools) and not self.calls.begun

    def _final_reason(self, reason: str) -> str:
        """Returns the finish reason that fits what went out; with a forced tool, the engine's."""
        called = self._view.calls_sent > 0
        if reason in _CUTS or (called and self._expected.forced is not None):
            return reason
        return "tool_calls" if called else "stop"


class AttemptGuard:
    """One engine's stream.

    Attributes:
        choices: The guards, by index of the choice.
        failed: True if the stream itself is broken.
    """

    def __init__(self) -> None:
        self.choices: dict[int, ChoiceGuard] = {}
        self._stream_defects: list[Defect] = []

    @property
    def failed(self) -> bool:
        return bool(self._stream_defects)

    @property
    def suspect(self) -> bool:
        """True if anything was found."""
        return self.failed or any([choice.defects for choice in self.choices.values()])

    @property
    def hopeless(self) -> bool:
        """True if nothing can save this attempt."""
        return self.failed or any(choice.broken for choice in self.choices.values())

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self.hopeless or any(choice.log.blocked for choice in self.choices.values())

    @property
    def contradicts(self) -> bool:
        """True if a document of this attempt cannot continue the one that the client has begun to receive."""
        return any(choice.log.contradicts for choice in self.choices.values())

    @property
    def unjudged(self) -> bool:
        """True if a schema could not be applied, which no other pool would change."""
        return any(defect.outcome is Outcome.UNJUDGED for defect in self.defects())

    @property
    def perhaps_cut(self) -> bool:
        """True if something is missing that a `stop` of the request may have cut off; the engine does not say."""
        cut_short = any(defect.outcome in (Outcome.TRUNCATED, Outcome.EMPTY_WHEN_REQUIRED) for defect in self.defects())
        return cut_short and any(choice.perhaps_cut for choice in self.choices.values())

    @property
    def over(self) -> bool:
        """True if every choice that has begun is, although the engine goes on."""
        return bool(self.choices) and all(choice.over for choice in self.choices.values())

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Adds a defect of the stream itself."""
        self._stream_defects.append(Defect(outcome, Severity.HARD, detail))

    def defects(self) -> tuple[Defect, ...]:
        return (*self._stream_defects, *(defect for choice in self.choices.values() for defect in choice.defects))

    def verdict(self) -> Verdict:
        defects = self.defects()
        worst = gravest(defects)
        # No pool is to blame for the request's own limits, nor for a rerun that only differs from what went out.
        endless = any(defect.outcome is Outcome.REPETITION for defect in defects)  # whatever the limits
        blameless = self.contradicts or (not endless and any(choice.cut for choice in self.choices.values()))
        if worst is not None and not blameless:
            blameless = worst.outcome is Outcome.UNJUDGED or self.perhaps_cut
        by_length = not endless and any(choice.by_length for choice in self.choices.values())
        return Verdict(worst.outcome if worst else Outcome.CLEAN, defects, not blameless, by_length)
