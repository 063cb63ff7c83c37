"""A JSON answer on its way: streamed as far as it is a valid prefix, its last character only once all is right."""

from __future__ import annotations

from serve.guard.core.json_prefix import JsonPrefix
from serve.guard.core.markup import REPLACEMENT, Quoted
from serve.guard.core.schema import Schema
from serve.guard.core.tool_call import CallCheck, has_half_character
from serve.guard.core.verdict import Outcome, Severity, Violation
from serve.parsing.strict_json import loads


class DocumentGuard:
    """Guards the content of an answer that must be one JSON document.

    Args:
        schema: What the document must satisfy.
        check: Tells what a schema mismatch demands.
        choice: Index of the choice, for violations.
        hold: Whether nothing goes out before the end.
        quoted: Whether the request holds a text itself.

    Attributes:
        started: Whether any text has come.
    """

    def __init__(self, schema: Schema, check: CallCheck, choice: int, *, hold: bool, quoted: Quoted) -> None:
        self._schema, self._check, self._choice, self._hold, self._quoted = schema, check, choice, hold, quoted
        self._prefix = JsonPrefix(must_be_object=schema.is_of_objects)
        self._pieces: list[str] = []
        self._held: list[str] = []
        self._new: list[Violation] = []
        self.started = False

    def take_violations(self) -> list[Violation]:
        """What was found since the last call."""
        new, self._new = self._new, []
        return new

    def feed(self, text: str) -> str:
        """The text that may go out."""
        self.started = self.started or bool(text)
        self._pieces.append(text)
        self._held.append(text)
        if self._prefix.broken:
            return ""
        if REPLACEMENT in text and not self._quoted(REPLACEMENT):
            self._found(Outcome.TRUNCATED, "a cut character in the document")
        self._prefix.feed(text)
        if self._prefix.broken:
            self._found(Outcome.INVALID_JSON, "the content is not JSON")
        if self._new or self._hold:
            return ""
        held = "".join(self._held)
        ready = max(0, len(held.rstrip()) - 1) if self._prefix.complete else len(held)
        self._held = [held[ready:]]
        return held[:ready]

    def finish(self, *, cut: bool) -> None:
        """Judge the whole."""
        if self._prefix.broken:
            return
        if not self._prefix.complete:
            how = ("was cut by length", Severity.NOTE) if cut else ("ends early", Severity.HARD)
            self._found(Outcome.TRUNCATED, f"the document {how[0]}", how[1])
            return
        text = "".join(self._pieces)
        value = loads(text)
        if has_half_character(text, value):
            self._found(Outcome.TRUNCATED, "half a character in the document")
        elif mismatch := self._schema.mismatch(value):
            severity = self._check.schema_severity(self._schema.strict)
            self._found(Outcome.SCHEMA_MISMATCH, f"the document at {mismatch}", severity)

    def flush(self) -> str:
        """All that is held back, right or wrong."""
        held, self._held = "".join(self._held), []
        return held

    def _found(self, outcome: Outcome, detail: str, severity: Severity = Severity.HARD) -> None:
        self._new.append(Violation(outcome, severity, detail, self._choice))
