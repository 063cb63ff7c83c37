"""The guard of one choice in one attempt: what may go out, what is held back, what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.chunk import TEXTS
from serve.guard.core.client_view import Delta, Outflow, ReadyCall
from serve.guard.core.document import DocumentGuard
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import CALL_OPENERS, REPLACEMENT, MarkupScanner
from serve.guard.core.rescue import Rescued, is_cut_call, rescue
from serve.guard.core.tool_call import CallCheck, HeldCall
from serve.guard.core.verdict import Outcome, Severity, Violation


class ChoiceGuard:
    """Takes one choice's deltas and yields those that may go out.

    Args:
        index: Of the choice.
        expectation: Of the request.
        settings: Of the guard.
        outflow: What the client has of this choice; outlives the attempt.
        tolerates: Severities that don't hold anything back: the last attempt lets pass what it can't better.

    Attributes:
        violations: What was found so far.
        contradicts: Whether this attempt's document can't continue the one that the client has begun to receive.
        cut: Whether `length` ended the choice.
        ended: Whether a finish reason has come.
    """

    def __init__(
        self,
        index: int,
        expectation: Expectation,
        settings: GuardConfig,
        outflow: Outflow,
        tolerates: frozenset[Severity],
    ) -> None:
        self._index, self._expected, self._settings = index, expectation, settings
        self._outflow, self._tolerates = outflow, tolerates
        self._check = CallCheck(expectation, settings)
        self._scanners: dict[str, MarkupScanner] = {}
        self._document = (
            DocumentGuard(expectation.document, self._check, index, hold=settings.hold_json, quoted=expectation.quotes)
            if expectation.document is not None
            else None
        )
        self._calls: dict[int, HeldCall] = {}
        self._open: HeldCall | None = None
        self._withheld: list[HeldCall] = []
        self._spoke = False
        self._reason: str | None = None
        self.violations: list[Violation] = []
        self.contradicts = False
        self.cut = False
        self.ended = False

    @property
    def blocked(self) -> bool:
        """Whether something was found that this attempt must not let pass."""
        return self.contradicts or any(self._stops(violation.severity) for violation in self.violations)

    @property
    def broken(self) -> bool:
        """Whether nothing more can be made of this attempt."""
        if not self.violations:
            return False  # asked for every chunk
        hard = any(violation.severity is Severity.HARD for violation in self.violations)
        return self.contradicts or (hard and self._stops(Severity.HARD))

    def _stops(self, severity: Severity) -> bool:
        return severity is not Severity.NOTE and severity not in self._tolerates

    def goes_on(self, call: int, arguments: str) -> bool:
        """Whether a call is the open one; if so, more of its arguments has been taken in."""
        if self._open is None or call != self._open.index:
            return False
        self._open.more(arguments)
        self._note_early(self._open)
        return True

    def feed(self, delta: Mapping[str, Any], finish_reason: str | None) -> Iterator[tuple[Delta, str | None]]:
        """Yield (delta, finish reason) pairs that may go out."""
        said: Delta = {}
        self._reason = finish_reason or self._reason
        for name, value in delta.items():
            if name in TEXTS and isinstance(value, str):
                if (passed := self.text(name, value)) or (value == "" and self._outflow.first):
                    said[name] = passed
            elif name != "tool_calls" and self._outflow.first:
                said[name] = value
        if said:
            yield said, None
        for entry in delta.get("tool_calls") or ():
            yield from self._silent(self._entry(entry))
        if finish_reason is not None:
            yield from self._end(finish_reason)

    def flush(self) -> Iterator[tuple[Delta, str | None]]:
        """Let everything go out as it is, right or wrong."""
        said = {}
        for name, scanner in self._scanners.items():
            held = scanner.leak + scanner.finish()
            if name == "content" and self._document is not None:
                held = self._document.flush() + held
            if text := self._outflow.text(name, held):
                said[name] = text
        if said:
            yield said, None
        held_calls = [*self._withheld, *([self._open] if self._open else [])]
        self._withheld, self._open = [], None
        for call in held_calls:
            yield from self._silent(self._release(call))
        yield from self._silent(self._outflow.finish())
        yield {}, self._final_reason(self._reason or "stop")

    # Text

    def text(self, name: str, text: str) -> str:
        """The part of a text that may go out."""
        if name == "content":
            self._spoke = self._spoke or not (text == "" or text.isspace())
        scanner = self._scanners.get(name) or self._scanners.setdefault(name, MarkupScanner(self._expected.quotes))
        passed = self._pass(name, scanner.feed(text))
        if scanner.opening and not (self._may_be_rescued(scanner.opening) or self._may_be_cut(scanner.opening)):
            self._found(Outcome.MARKER_LEAK, f"markup in {name}", once=True)
        return passed

    def _pass(self, name: str, text: str) -> str:
        """The part of clean text that may go out."""
        if name == "content" and self._document is not None:
            text = self._document.feed(text)
            self.violations += self._document.take_violations()
        elif REPLACEMENT in text and not self._expected.quotes(REPLACEMENT):
            self._found(Outcome.TRUNCATED, f"a cut character in {name}", Severity.NOTE, once=True)
        return self._out(name, text)

    def _out(self, name: str, text: str) -> str:
        """The part of a text that the client does not have yet."""
        passed = self._outflow.text(name, text) if text else ""
        if name == "content" and self._document is not None and self._outflow.diverged(name):
            self.contradicts = True
            self._found(Outcome.FAILED, "the rerun's document does not begin with what went out", once=True)
        return passed

    def _may_be_rescued(self, leak: str) -> bool:
        allowed = self._settings.rescue and bool(self._expected.tools) and not self._calls
        return allowed and leak.startswith(CALL_OPENERS)

    def _may_be_cut(self, leak: str) -> bool:
        return self._reason == "length" and leak.startswith(CALL_OPENERS)

    # Calls

    def _entry(self, entry: Any) -> Iterator[Delta]:
        if not HeldCall.accepts(entry):
            self._found(Outcome.INVALID_JSON, "a malformed delta of a call", once=True)
            return
        index = entry.get("index")
        if index is None:
            index = len(self._calls) if entry.get("id") or self._open is None else self._open.index
        call = self._calls.get(index)
        if call is None:
            yield from self._close()
            call = self._open = self._calls[index] = HeldCall(index)
        elif call is not self._open:
            self._found(Outcome.INVALID_JSON, "a call goes on after the next has begun", call=index, once=True)
            return
        call.add(entry)
        self._note_early(call)

    def _note_early(self, call: HeldCall) -> None:
        if violation := self._check.early(call, self._index):
            self._once(violation)

    def _close(self) -> Iterator[Delta]:
        """The open call is complete: judge it, then send or withhold it."""
        call, self._open = self._open, None
        if call is None:
            return
        if violation := self._check.violation(call, self._index):
            self._once(violation)
        if self.blocked:
            self._withheld.append(call)
        else:
            yield from self._release(call)

    def _release(self, call: HeldCall) -> Iterator[Delta]:
        try:
            value = call.value
        except ValueError:
            value = None
        return self._outflow.call(ReadyCall(call.id, call.name, call.arguments, value))

    # The end

    def _end(self, reason: str) -> Iterator[tuple[Delta, str | None]]:
        self.ended, self.cut, self._reason = True, reason == "length", reason
        yield from self._last_texts()
        yield from self._silent(self._last_calls(reason))
        self._judge_silence(reason)
        if not self.blocked:
            yield from self._silent(self._outflow.finish())
            yield {}, self._final_reason(reason)

    def _last_texts(self) -> Iterator[tuple[Delta, str | None]]:
        said: Delta = {}
        for name, scanner in self._scanners.items():
            if (held := scanner.finish()) and (text := self._pass(name, held)):
                said[name] = text
        if self._document is not None and (self._document.started or not (self._calls or self._leaks())):
            self._document.finish(cut=self._reason == "length")
            self.violations += self._document.take_violations()
            if not self.blocked and (text := self._out("content", self._document.flush())):
                said["content"] = said.get("content", "") + text
        if said:
            yield said, None

    def _last_calls(self, reason: str) -> Iterator[Delta]:
        if self._open is not None and reason == "length" and self._incomplete(self._open):
            self._open = None
            self._found(Outcome.TRUNCATED, "a call was cut by length", Severity.NOTE)
        yield from self._close()
        for name, leak in self._leaks().items():
            yield from self._from_leak(name, leak)

    @staticmethod
    def _incomplete(call: HeldCall) -> bool:
        return not call.prefix.broken and not call.prefix.complete

    def _leaks(self) -> dict[str, str]:
        return {name: scanner.leak for name, scanner in self._scanners.items() if scanner.opening}

    def _from_leak(self, name: str, leak: str) -> Iterator[Delta]:
        found: Rescued | None = None
        if self._may_be_rescued(leak) and self._reason != "length":
            found = rescue(leak, self._expected.grammar, self._expected, self._check)
        if found is None and self._may_be_cut(leak) and is_cut_call(leak, self._expected.grammar, self._expected):
            self._found(Outcome.TRUNCATED, "a call was cut by length", Severity.NOTE)
            return
        if found is None:
            self._found(Outcome.MARKER_LEAK, f"markup in {name}", once=True)
            if not self.blocked:
                yield {name: self._outflow.text(name, leak)}
            return
        self._found(Outcome.RESCUED, "calls read from leaked markup", Severity.NOTE)
        for call in found.calls:
            self._calls[call.index] = self._open = call
            yield from self._close()
        if found.content and not self.blocked:
            yield {"content": self._outflow.text("content", found.content)}

    def _judge_silence(self, reason: str) -> None:
        if self._calls or reason in ("length", "content_filter"):
            return
        if self._expected.calls_required or reason == "tool_calls":
            self._found(Outcome.EMPTY_WHEN_REQUIRED, "no call where one was required", once=True)
        elif self._expected.tools and not self._spoke and self._expected.silence_is_odd:
            self._found(Outcome.EMPTY_WHEN_REQUIRED, "neither text nor call", Severity.SOFT)

    def _final_reason(self, reason: str) -> str:
        """The finish reason that fits what went out."""
        if reason in ("length", "content_filter"):
            return reason
        if self._outflow.calls_sent and self._expected.forced is None:
            return "tool_calls"
        return reason if self._outflow.calls_sent else "stop"

    # Small change

    def _found(
        self,
        outcome: Outcome,
        detail: str,
        severity: Severity = Severity.HARD,
        *,
        call: int | None = None,
        once: bool = False,
    ) -> None:
        violation = Violation(outcome, severity, detail, self._index, call)
        if not once or violation not in self.violations:
            self.violations.append(violation)

    def _once(self, violation: Violation) -> None:
        """Note a violation unless a hard one of the same call is noted already."""
        if not any(known.call == violation.call and known.severity is Severity.HARD for known in self.violations):
            self.violations.append(violation)

    @staticmethod
    def _silent(deltas: Iterable[Delta]) -> Iterator[tuple[Delta, str | None]]:
        for delta in deltas:
            yield delta, None
