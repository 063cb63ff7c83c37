"""One choice in one attempt, and the attempt as all of its choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.call_guard import CallCheck, CallGuard
from serve.guard.core.chunk import TEXTS
from serve.guard.core.client_view import ClientView, Delta
from serve.guard.core.document import DocumentGuard
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import CALL_OPENERS
from serve.guard.core.rescue import is_cut_call, rescue
from serve.guard.core.text_guard import TextGuard
from serve.guard.core.verdict import Defect, DefectLog, Outcome, Severity, Verdict, gravest

Step = tuple[Delta, str | None]  # a delta that may go out, and its finish reason


class ChoiceGuard:
    """Takes one choice's deltas and returns those that may go out.

    Args:
        index: Of the choice.
        expectation: Of the request.
        settings: Of the guard.
        view: What the client has of this choice; outlives the attempt.
        tolerates: Severities that hold nothing back, because no later attempt could do better.

    Attributes:
        calls: Guards the calls.
        defects: All that was found so far.
        cut: True if `length` ended the choice.
        ended: True once a finish reason has come.
    """

    def __init__(
        self,
        index: int,
        expectation: Expectation,
        settings: GuardConfig,
        view: ClientView,
        tolerates: frozenset[Severity],
    ) -> None:
        self.cut = False
        self.ended = False
        self._expected = expectation
        self._settings = settings
        self._view = view
        self._reason: str | None = None
        log = DefectLog(index, tolerates)
        self.defects = log.defects
        self._log = log
        self._check = CallCheck(expectation, settings)
        self.calls = CallGuard(index, self._check, view, log)
        document = None
        if expectation.document is not None:
            document = DocumentGuard(
                expectation.document, self._check, log, hold=settings.hold_json, quoted=expectation.quotes
            )
        self._texts = TextGuard(expectation, view, log, document)

    @property
    def contradicts(self) -> bool:
        """True if this attempt's document cannot continue the one that the client has begun to receive."""
        return self._log.contradicts

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self._log.blocked

    @property
    def broken(self) -> bool:
        """True if nothing can save this attempt."""
        return bool(self.defects) and self._log.broken  # most answers have none, and every chunk asks

    def feed(self, delta: Mapping[str, Any], finish_reason: str | None) -> list[Step]:
        """Returns what may go out now.

        Args:
            delta: Of the engine.
            finish_reason: Of the engine; None before the end.
        """
        self._reason = finish_reason or self._reason
        first = self._view.first
        ready: Delta = {}
        for name, value in delta.items():
            if name in TEXTS and isinstance(value, str):
                if (text := self.feed_text(name, value)) or (value == "" and first):
                    ready[name] = text
            elif name != "tool_calls" and first:
                ready[name] = value
        steps: list[Step] = [(ready, None)] if ready else []
        for entry in delta.get("tool_calls") or ():
            steps += _silent(self.calls.feed(entry))
        return steps if finish_reason is None else steps + self._finish(finish_reason)

    def feed_text(self, name: str, text: str) -> str:
        """Returns the part of a text that may go out.

        Args:
            name: Of the field.
            text: What the engine adds to it.
        """
        ready = self._texts.feed(name, text)
        if self._texts.leaking and (leak := self._texts.opening(name)):
            cut = self._reason == "length" and leak.startswith(CALL_OPENERS)
            if not (cut or self._may_be_rescued(leak)):
                self._log.report(Outcome.MARKER_LEAK, f"markup in {name}", once=True)
        return ready

    def flush(self) -> list[Step]:
        """Returns everything that was held back, right or wrong, and the finish reason."""
        texts = self._texts.flush()
        deltas = [texts] if texts else []
        deltas += self.calls.flush()
        deltas += self._view.finish()
        return [*_silent(deltas), ({}, self._final_reason(self._reason or "stop"))]

    def _finish(self, reason: str) -> list[Step]:
        self.cut = reason == "length"
        texts = self._texts.finish(cut=self.cut, called=self.calls.begun)
        deltas = [texts] if texts else []
        deltas += self.calls.finish(cut=self.cut)
        for name, leak in self._texts.leaks().items():
            deltas += self._finish_leak(name, leak)
        silence = silence_defect(self._expected, reason, called=self.calls.begun, spoke=self._texts.spoke)
        if silence is not None:
            severity, detail = silence
            self._log.report(Outcome.EMPTY_WHEN_REQUIRED, detail, severity, once=True)
        steps = _silent(deltas)
        if not self.blocked:
            steps = [*_silent([*deltas, *self._view.finish()]), ({}, self._final_reason(reason))]
        self.ended = True  # last: what raised before is an attempt without an end, and never one that is done
        return steps

    def _finish_leak(self, name: str, leak: str) -> list[Delta]:
        """Returns what may go out of leaked markup: the calls in it, or its text if the attempt is past saving."""
        grammar = self._expected.grammar
        rescued = None
        if not self.cut and self._may_be_rescued(leak):
            rescued = rescue(leak, grammar, self._expected, self._check)
        if rescued is not None:
            self._log.report(Outcome.RESCUED, "calls read from leaked markup", Severity.NOTE)
            deltas = self.calls.rescue(rescued.calls)
            if rescued.content and not self.blocked:
                deltas.append({"content": self._view.feed_text("content", rescued.content)})
            return deltas
        if self.cut and leak.startswith(CALL_OPENERS) and is_cut_call(leak, grammar, self._expected):
            self._log.report(Outcome.TRUNCATED, "a call was cut by length", Severity.NOTE)
            return []
        self._log.report(Outcome.MARKER_LEAK, f"markup in {name}", once=True)
        return [] if self.blocked else [{name: self._view.feed_text(name, leak)}]

    def _may_be_rescued(self, leak: str) -> bool:
        possible = self._settings.rescue and bool(self._expected.tools) and not self.calls.begun
        return possible and leak.startswith(CALL_OPENERS)

    def _final_reason(self, reason: str) -> str:
        return final_reason(reason, called=bool(self._view.calls_sent), forced=self._expected.forced is not None)


def silence_defect(expected: Expectation, reason: str, *, called: bool, spoke: bool) -> tuple[Severity, str] | None:
    """Returns severity and detail of what an answer lacks; None if it lacks nothing.

    Args:
        expected: What the request demands.
        reason: Why the answer ended.
        called: Whether it holds calls.
        spoke: Whether it holds content.
    """
    if called or reason in ("length", "content_filter"):
        return None
    if expected.calls_required or reason == "tool_calls":
        return Severity.HARD, "no call where one was required"
    if expected.tools and not spoke and expected.silence_is_odd:
        return Severity.SOFT, "neither text nor call"
    return None


def final_reason(reason: str, *, called: bool, forced: bool) -> str:
    """Returns the finish reason that fits what went out.

    Args:
        reason: The engine's.
        called: Whether calls went out.
        forced: Whether the request forced one tool; such an answer keeps the engine's reason.
    """
    if reason in ("length", "content_filter") or (called and forced):
        return reason
    return "tool_calls" if called else "stop"


def _silent(deltas: list[Delta]) -> list[Step]:
    """Deltas that do not end the choice."""
    return [(delta, None) for delta in deltas]


class Attempt:
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
    def hopeless(self) -> bool:
        """True if nothing can save this attempt."""
        return self.failed or any(choice.broken for choice in self.choices.values())

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self.hopeless or any(choice.blocked for choice in self.choices.values())

    @property
    def contradicts(self) -> bool:
        """True if a document of this attempt cannot continue the one that the client has begun to receive."""
        return any(choice.contradicts for choice in self.choices.values())

    @property
    def unjudged(self) -> bool:
        """True if a schema could not be applied, which no other pool would change."""
        return any(defect.outcome is Outcome.UNJUDGED for defect in self.defects())

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Adds a defect of the stream itself."""
        self._stream_defects.append(Defect(outcome, Severity.HARD, detail))

    def defects(self) -> tuple[Defect, ...]:
        """Returns all that was found so far."""
        return (*self._stream_defects, *(defect for choice in self.choices.values() for defect in choice.defects))

    def verdict(self) -> Verdict:
        """Returns the verdict of what has arrived."""
        defects = self.defects()
        worst = gravest(defects)
        # Neither a cut by length nor a rerun that only differs from what went out is a fault of the pool.
        blameless = self.contradicts or any(choice.cut for choice in self.choices.values())
        blameless = blameless or (worst is not None and worst.outcome is Outcome.UNJUDGED)
        return Verdict(worst.outcome if worst else Outcome.CLEAN, defects, counts=not blameless)
