"""A JSON answer in progress: streamed as long as it is a valid prefix, its last character only once all is right."""

from __future__ import annotations

from serve.config.guard import GuardConfig
from serve.guard.core.json_prefix import MOST_SPACE, JsonPrefix
from serve.guard.core.marker_table import REPLACEMENT
from serve.guard.core.schema import Schema
from serve.guard.core.schema_budget import UnjudgedError
from serve.guard.core.severity import Severity, severity_of_mismatch, severity_of_unjudged
from serve.guard.core.verdict import DefectLog, Outcome
from serve.parsing.strict_json import has_half_character, loads


class DocumentGuard:
    """Guards content that must be one JSON document.

    Args:
        schema: What the document must satisfy.
        settings: Of the guard.
        log: Takes the defects.

    Attributes:
        started: True once any text has come.
        over: True once the document is followed by space without end: nothing else will come.
    """

    def __init__(self, schema: Schema, settings: GuardConfig, log: DefectLog) -> None:
        self.started = False
        self.over = False
        self._schema = schema
        self._settings = settings
        self._hold = settings.hold_json
        self._log = log
        self._prefix = JsonPrefix(begins="{" if schema.is_of_objects else "")
        self._pieces: list[str] = []
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Returns the text that may go out."""
        if self.over:
            return ""
        self.started = self.started or bool(text)
        self._pieces.append(text)
        self._held.append(text)
        if self._prefix.broken:
            return ""
        if REPLACEMENT in text:
            self._log.report(Outcome.TRUNCATED, "a cut character in the document", Severity.SUSPECT, once=True)
        self._prefix.feed(text)
        if self._prefix.broken:
            self._log.report(Outcome.INVALID_JSON, "the content is not JSON")
        if self._prefix.space > MOST_SPACE and self._prefix.complete:
            self.over = True
            self._log.report(Outcome.INVALID_JSON, "space without end behind the document", Severity.NOTE, once=True)
        if self._prefix.broken or self._hold or (self._log.defects and self._log.blocked):
            return ""
        held = "".join(self._held)
        ready = len(held)
        if self._prefix.complete:
            ready = max(0, len(held.rstrip()) - 1)
        elif self._prefix.space:  # another engine's answer, to go on with the document, would not have the same
            ready = len(held.rstrip())
        self._held = [held[ready:]]
        return held[:ready]

    def finish(self, *, cut: bool) -> None:
        """Checks the whole document.

        Args:
            cut: Whether the request's own limits ended it.
        """
        if self._prefix.broken:
            return
        if not self._prefix.complete and cut:
            self._log.report(Outcome.TRUNCATED, "the document was cut by the request's own limits", Severity.NOTE)
            return
        if not self._prefix.complete:
            self._log.report(Outcome.TRUNCATED, "the document ends early")
            return
        text = "".join(self._pieces)
        try:
            value = loads(text)
        except ValueError:  # a number of 5,000 digits, or a thousand brackets
            self._log.report(Outcome.INVALID_JSON, "the document can't be read")
            return
        if has_half_character(text, value):
            self._log.report(Outcome.TRUNCATED, "half a character in the document")
            return
        try:
            mismatch = self._schema.mismatch(value, len(text))
        except UnjudgedError as error:
            self._log.report(Outcome.UNJUDGED, f"the document: {error}", severity_of_unjudged(self._settings))
            return
        if mismatch:
            severity = severity_of_mismatch(self._settings, strict=self._schema.strict)
            self._log.report(Outcome.SCHEMA_MISMATCH, f"the document at {mismatch}", severity)

    def flush(self) -> str:
        """Returns everything that was held back, right or wrong."""
        held = "".join(self._held)
        self._held = []
        return held
