"""One tool call, held back until it is complete, and the checks that it must pass."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.expectation import Expectation
from serve.guard.core.json_prefix import JsonPrefix
from serve.guard.core.markup import REPLACEMENT, find_in_arguments, find_markup
from serve.guard.core.verdict import Defect, Outcome, Severity
from serve.parsing.strict_json import loads

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class HeldCall:
    """A call as far as it has arrived."""

    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    prefix: JsonPrefix = field(default_factory=lambda: JsonPrefix(must_be_object=True))

    def feed(self, entry: Mapping[str, Any]) -> None:
        """Adds a delta's entry for this call. A late or split name is put together; nulls count as absent."""
        function = entry.get("function") or {}
        self.id = self.id or entry.get("id") or ""
        self.name += function.get("name") or ""
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
            if call.prefix.broken:
                return of(Outcome.INVALID_JSON, "arguments are not JSON")
            return of(Outcome.TRUNCATED, "arguments end early")
        if not isinstance(value, dict):
            return of(Outcome.INVALID_JSON, "arguments are no object")
        if has_half_character(text, value):
            return of(Outcome.TRUNCATED, "half a character in the arguments")
        schema = self._expected.tools[call.name]
        if mismatch := schema.mismatch(value):
            return of(Outcome.SCHEMA_MISMATCH, f"{call.name} at {mismatch}", self.schema_severity(schema.strict))
        return None

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


def has_half_character(text: str, value: Any) -> bool:
    """Returns whether a string in a document holds a lone surrogate, which cannot be encoded.

    Args:
        text: The document's JSON.
        value: The same document, parsed.
    """
    if "\\u" not in text and (text.isascii() or _SURROGATE.search(text) is None):
        return False
    return _SURROGATE.search(_plain.encode(value)) is not None


_plain = json.JSONEncoder(ensure_ascii=False)
