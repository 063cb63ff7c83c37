"""The tool calls of one choice in one attempt: held back, checked, and sent once they are complete and right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.client_view import ClientView, ReadyCall, Step
from serve.guard.core.expectation import Expectation
from serve.guard.core.json_prefix import JsonPrefix
from serve.guard.core.markup import REPLACEMENT, find_in_arguments, find_markup
from serve.guard.core.schema_budget import UnjudgedError
from serve.guard.core.token_details import TokenDetails
from serve.guard.core.verdict import Defect, DefectLog, Outcome, Severity
from serve.parsing.strict_json import has_half_character, loads

MAX_CALLS = 512  # of a choice: looking for defects takes time for each, and again for each
_MAX_NAME_CHARS = 1024


@dataclass
class HeldCall:
    """A call as far as it has arrived."""

    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    prefix: JsonPrefix = field(default_factory=lambda: JsonPrefix(must_be_object=True))
    tokens: list[TokenDetails] = field(default_factory=list)

    def feed(self, entry: Mapping[str, Any]) -> None:
        """Adds a delta's entry for this call. A late or split name is put together; nulls count as absent."""
        function = entry.get("function") or {}
        if name := function.get("name"):
            repeated = name == self.name and self.id and entry.get("id") == self.id  # some servers say both every time
            self.name += "" if repeated else name
        self.id = self.id or entry.get("id") or ""
        if arguments := function.get("arguments"):
            self.feed_arguments(arguments)

    def feed_arguments(self, arguments: str) -> None:
        """Adds to the arguments."""
        self.pieces.append(arguments)
        self.prefix.feed(arguments)

    @staticmethod
    def accepts(entry: Any) -> bool:
        """Returns whether a delta's entry has the shape that `feed` reads."""
        if not isinstance(entry, dict) or not isinstance(entry.get("index"), int | None):
            return False
        function = entry.get("function")
        if not isinstance(function, dict | None):
            return False
        texts = (entry.get("id"), *((function.get("name"), function.get("arguments")) if function else ()))
        return all(isinstance(text, str | None) for text in texts)

    @property
    def incomplete(self) -> bool:
        """True if the arguments so far begin a JSON object and do not end it."""
        return not self.prefix.broken and not self.prefix.complete

    @property
    def arguments(self) -> str:
        """The arguments' text; an engine that writes nothing for a call without arguments means `{}`."""
        return "".join(self.pieces) or "{}"

    @cached_property
    def value(self) -> Any:
        """The parsed arguments of a complete call.

        Raises:
            ValueError: They are not JSON.
        """
        return loads(self.arguments)


class CallCheck:
    """Checks calls against what the request expects.

    Args:
        expectation: Of the request.
        settings: Of the guard.
    """

    def __init__(self, expectation: Expectation, settings: GuardConfig) -> None:
        self._expected = expectation
        self._settings = settings

    def early_defect(self, call: HeldCall, choice: int) -> Defect | None:
        """Returns the defect that is certain before a call is complete, if there is one."""
        if call.prefix.broken:
            return Defect(Outcome.INVALID_JSON, Severity.HARD, "arguments are not JSON", choice, call.index)
        if len(call.name) > _MAX_NAME_CHARS:
            return Defect(Outcome.UNKNOWN_TOOL, Severity.HARD, "an endless name", choice, call.index)
        return None

    def defect(self, call: HeldCall, choice: int) -> Defect | None:
        """Returns the first defect of a complete call; None if it has none."""

        def of(outcome: Outcome, detail: str, severity: Severity = Severity.HARD) -> Defect:
            return Defect(outcome, severity, detail, choice, call.index)

        text = call.arguments
        if markup := self._leaked(call.name, text):
            return of(Outcome.MARKER_LEAK, f"{markup} in a call")
        if problem := self._name_problem(call.name):
            return of(Outcome.UNKNOWN_TOOL, problem)
        if not self._expected.quotes(REPLACEMENT) and REPLACEMENT in text:
            return of(Outcome.TRUNCATED, "a cut character in the arguments")
        try:
            value = call.value
        except ValueError:
            if call.incomplete:
                return of(Outcome.TRUNCATED, "arguments end early")
            return of(Outcome.INVALID_JSON, "arguments can't be read as JSON")
        if not isinstance(value, dict):
            return of(Outcome.INVALID_JSON, "arguments are no object")
        if has_half_character(text, value):
            return of(Outcome.TRUNCATED, "half a character in the arguments")
        if found := self._schema_problem(call.name, value):
            return of(*found)
        return None

    def _schema_problem(self, name: str, value: Any) -> tuple[Outcome, str, Severity] | None:
        schema = self._expected.tools[name]
        try:
            mismatch = schema.mismatch(value)
        except UnjudgedError as error:
            return Outcome.UNJUDGED, f"{name}: {error}", self.unjudged_severity
        if mismatch is None:
            return None
        return Outcome.SCHEMA_MISMATCH, f"{name} at {mismatch}", self.schema_severity(schema.strict)

    @property
    def unjudged_severity(self) -> Severity:
        """The severity of a schema that could not be applied."""
        return Severity.HARD if self._settings.unjudged == "refuse" else Severity.NOTE

    def schema_severity(self, strict: bool) -> Severity:
        """Returns the severity of a schema mismatch."""
        if strict or self._settings.mode == "strict":
            return Severity.HARD
        return Severity.SOFT if self._settings.schema == "enforce" else Severity.NOTE

    def _leaked(self, name: str, arguments: str) -> str | None:
        quoted = self._expected.quotes
        match = find_markup(name, quoted) or find_in_arguments(arguments, quoted)
        return match.group() if match else None

    def _name_problem(self, name: str) -> str | None:
        if name not in self._expected.tools:
            return "a tool that the request does not have" if name else "a call without a name"
        if self._expected.forced not in (None, name):
            return "another tool than the forced one"
        return None


class CallGuard:
    """Collects calls, checks each when it is complete, and returns it as deltas if it may go out.

    Args:
        choice: Index of the choice.
        check: Checks a call.
        view: What the client has of this choice.
        log: Takes the defects.
    """

    def __init__(self, choice: int, check: CallCheck, view: ClientView, log: DefectLog) -> None:
        self._choice = choice
        self._check = check
        self._view = view
        self._log = log
        self._calls: dict[int, HeldCall] = {}
        self._open: HeldCall | None = None
        self._withheld: list[HeldCall] = []

    @property
    def begun(self) -> bool:
        """True once there is any call."""
        return bool(self._calls)

    def feed(self, entry: Any) -> list[Step]:
        """Takes one entry of a delta's `tool_calls`; returns the call that it completes by beginning the next."""
        if not HeldCall.accepts(entry):
            self._log.report(Outcome.INVALID_JSON, "a malformed delta of a call", once=True)
            return []
        index = entry.get("index")
        if index is None:
            index = len(self._calls) if entry.get("id") or self._open is None else self._open.index
        call = self._calls.get(index)
        ready: list[Step] = []
        if call is None and len(self._calls) == MAX_CALLS:
            self._log.report(Outcome.INVALID_JSON, f"more than {MAX_CALLS} calls", once=True)
            return []
        if call is None:
            ready = self._close()
            call = HeldCall(index)
            self._calls[index] = call
            self._open = call
        elif call is not self._open:
            detail = "a call goes on after the next has begun"
            self._log.report(Outcome.INVALID_JSON, detail, call=index, once=True)
            return []
        call.feed(entry)
        self._report_early(call)
        return ready

    def feed_arguments(self, call: int, arguments: str) -> bool:
        """Adds to the arguments of the open call.

        Args:
            call: Index of the call.
            arguments: What follows of its arguments.

        Returns:
            False if another call is open; then nothing was done.
        """
        if self._open is None or call != self._open.index:
            return False
        self._open.feed_arguments(arguments)
        if self._open.prefix.broken:
            self._report_early(self._open)
        return True

    def keep_tokens(self, tokens: Iterable[TokenDetails]) -> bool:
        """Keeps details with the open call; returns False if there is none."""
        if self._open is None:
            return False
        self._open.tokens += tokens
        return True

    def finish(self, *, cut: bool) -> list[Step]:
        """Completes the last call.

        Args:
            cut: Whether the request's own limits ended the choice; a call that they cut is dropped.
        """
        call = self._open
        if not cut or call is None or not call.incomplete:
            return self._close()
        self._open = None
        self._log.report(Outcome.TRUNCATED, "a call was cut by the request's own limits", Severity.NOTE)
        return [Step({}, tokens=tuple(call.tokens))] if call.tokens else []

    def rescue(self, calls: Iterable[HeldCall]) -> list[Step]:
        """Takes in complete calls that were read from leaked markup."""
        ready: list[Step] = []
        for call in calls:
            self._calls[call.index] = call
            self._open = call
            ready += self._close()
        return ready

    def flush(self) -> list[Step]:
        """Returns all calls that were held back, right or wrong."""
        held = self._withheld
        if self._open is not None:
            held.append(self._open)
        self._withheld = []
        self._open = None
        return [step for call in held for step in self._release(call)]

    def _close(self) -> list[Step]:
        """Checks the open call, which is complete; returns it if it may go out, and withholds it otherwise."""
        call = self._open
        if call is None:
            return []
        self._open = None
        if defect := self._check.defect(call, self._choice):
            self._log.report_call(defect)
        if self._log.blocked:
            self._withheld.append(call)
            return []
        return self._release(call)

    def _release(self, call: HeldCall) -> list[Step]:
        try:
            value = call.value
        except ValueError:
            value = None
        return self._view.feed_call(ReadyCall(call.id, call.name, call.arguments, value, tuple(call.tokens)))

    def _report_early(self, call: HeldCall) -> None:
        if defect := self._check.early_defect(call, self._choice):
            self._log.report_call(defect)
