"""The texts of one choice in one attempt: free of markup, and one JSON document where the request demands one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from serve.config.guard import GuardConfig
from serve.guard.core.client_view import ClientView, Delta
from serve.guard.core.expectation import Expectation
from serve.guard.core.json_prefix import MOST_SPACE, JsonPrefix
from serve.guard.core.leak_scanner import MARKS, LeakScanner
from serve.guard.core.markup import MARKUP, REPLACEMENT, canonical
from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import UnjudgedError
from serve.guard.core.shape import OPENINGS, MarkerShape
from serve.guard.core.verdict import (
    DefectLog,
    Outcome,
    Severity,
    ends_in_repetition,
    severity_of_mismatch,
    severity_of_unjudged,
)
from serve.parsing.strict_json import has_half_character, loads
from serve.stream.frame import REASONING_NAMES

_BRACKET = re.compile(r"[{}\[\]]")
_decoder = json.JSONDecoder()


class TextGuard:
    """Returns the part of each text that may go out, and keeps leaked markup back.

    Attributes:
        leaking: True once a text holds a leak.
        spoke: True once the content holds more than space.
    """

    def __init__(self, expectation: Expectation, settings: GuardConfig, view: ClientView, log: DefectLog) -> None:
        self.leaking = False
        self.spoke = False
        self._expected = expectation
        self._view = view
        self._log = log
        schema = expectation.document
        self._document = None if schema is None else _DocumentGuard(schema, expectation.tools, settings, log)
        self._scanners: dict[str, LeakScanner] = {}

    def feed(self, name: str, text: str) -> str:
        """Returns what may go out now of a text to which the engine adds some."""
        if not self.spoke and name == "content":
            self.spoke = not (text == "" or text.isspace())
        scanner = self._scanners.get(name) or self._scanner(name)
        ready = self._pass(name, scanner.feed(text))
        if scanner.leak_begun:
            self.leaking = True
        return ready

    def breaks(self, name: str) -> Callable[[str], object] | None:
        """Returns what finds the texts that do not go out as they come; None if any may be held."""
        scanner = self._scanners.get(name)
        passes = scanner is not None and scanner.idle and not (name == "content" and self._document is not None)
        return MARKS.search if passes else None

    def pause(self, *, calls: bool) -> Delta:
        """Returns what the texts hold back that is text, since what follows them has begun.

        Args:
            calls: Whether that is a call, and no content behind thoughts.
        """
        ready: Delta = {}
        for name, scanner in self._scanners.items():
            if (calls or name != "content") and (held := scanner.pause()) and (text := self._pass(name, held)):
                ready[name] = text
        return ready

    def _scanner(self, name: str) -> LeakScanner:
        patient = self._log.stops(Severity.SUSPECT)
        document = name == "content" and self._document is not None
        scanner = LeakScanner(name, self._expected.tools, patient=patient, document=document)
        self._scanners[name] = scanner
        return scanner

    @property
    def over(self) -> bool:
        """True if the content is a whole document behind which nothing will come."""
        return self._document is not None and self._document.over

    def shape(self, name: str) -> MarkerShape:
        """Returns what the leak in a field is; `MENTION` if there is none."""
        scanner = self._scanners.get(name)
        return scanner.shape if scanner is not None else MarkerShape.MENTION

    def head_of_leak(self, name: str) -> str:
        """Returns the first characters of the leak in a field, as many as name its call."""
        return self._scanners[name].head

    def tail_of_leak(self, name: str) -> str:
        """Returns the last characters of the leak in a field so far."""
        return self._scanners[name].tail

    def leaks(self) -> dict[str, str]:
        """Leaked markup and all text after it, by field."""
        return {name: scanner.leak for name, scanner in self._scanners.items() if scanner.leak_begun}

    @property
    def repetitive(self) -> bool:
        """True if a text says the same over and over, as far as it has come."""
        return any(map(ends_in_repetition, map(self._said, self._scanners)))

    def _said(self, name: str) -> str:
        held = self._document.held if name == "content" and self._document is not None else ""
        return self._view.text_sent(name) + held + self._scanners[name].leak

    def acquit(self, name: str) -> str:
        """Returns the part that may go out of what was held as the leak in a field, and is none."""
        return self._pass(name, self._scanners[name].acquit())

    def finish(self, *, cut: bool, called: bool) -> Delta:
        """Ends the texts; returns what may still go out of them.

        Args:
            cut: Whether the request's own limits ended the choice.
            called: Whether there are calls, so that there need not be a document.
        """
        ready: Delta = {}
        for name, scanner in self._scanners.items():
            if (held := scanner.finish(cut=cut)) and (text := self._pass(name, held)):
                ready[name] = text
            if scanner.strayed:
                self._log.report(Outcome.MARKER_LEAK, f"markup in {name}", Severity.SUSPECT, once=True)
        document = self._document
        leaks = self.leaks()
        if document is not None and not (document.started or called or leaks or cut):
            ready |= self._document_in_thoughts(document)
        if document is not None and "content" not in leaks and (document.started or not (called or leaks)):
            document.finish(cut=cut, called=called)
            if not self._log.blocked and (text := self._extend_document(document.flush(), ended=not cut)):
                ready["content"] = ready.get("content", "") + text
        return ready

    def _document_in_thoughts(self, document: _DocumentGuard) -> Delta:
        """Returns what may go out of a document that came as a thought: the engine looked for an end of thoughts."""
        for name in REASONING_NAMES:
            if document.is_fit(thought := self._view.text_sent(name)):
                self._log.report(Outcome.RESCUED, "the document read from the thoughts", Severity.NOTE)
                self.spoke = True
                return {"content": self._extend_document(document.feed(thought))}
        return {}

    def flush(self) -> Delta:
        """Returns everything that was held back, right or wrong."""
        ready: Delta = {}
        for name, scanner in self._scanners.items():
            held = scanner.flush()
            if name == "content" and self._document is not None:
                held = self._document.flush() + held
            if text := self._view.feed_text(name, held):
                ready[name] = text
        return ready

    def _pass(self, name: str, text: str) -> str:
        """Returns the part of text without markup that may go out."""
        if name == "content" and self._document is not None:
            return self._extend_document(self._document.feed(text))
        if REPLACEMENT in text:
            self._log.report(Outcome.TRUNCATED, f"a cut character in {name}", Severity.NOTE, once=True)
        return self._view.feed_text(name, text) if text else ""

    def _extend_document(self, text: str, *, ended: bool = False) -> str:
        """Returns the part of a document's text that the client does not have yet."""
        ready = self._view.feed_text("content", text) if text else ""
        if self._view.diverged("content") or (ended and self._view.repeats("content")):
            self._log.contradicts = True
            self._log.report(Outcome.FAILED, "the rerun's document does not begin with what went out", once=True)
        return ready


class _DocumentGuard:
    """Guards content that must be one JSON document: it streams while it is a valid prefix, its end once all is right.

    Words around the document, or beside calls, are left out: where no grammar keeps them from it, models say what
    comes, put it into a code block, or write thoughts before it. Then the document, or what is missing of it, goes out
    at the end.

    Attributes:
        started: True once more than space has come.
        over: True once the document is followed by space without end: nothing else will come.
    """

    def __init__(self, schema: Schema, tools: Collection[str], settings: GuardConfig, log: DefectLog) -> None:
        self.started = False
        self.over = False
        self._schema = schema
        self._tools = tools
        self._settings = settings
        self._hold = settings.hold_json
        self._log = log
        self._prefix = JsonPrefix(begins="{" if schema.is_of_objects else "")
        self._pieces: list[str] = []
        self._held: list[str] = []
        self._has_words = False

    def feed(self, text: str) -> str:
        """Returns the text that may go out."""
        self.started = self.started or not (text == "" or text.isspace())
        if self.over:
            return ""
        self._pieces.append(text)
        self._held.append(text)
        if self._prefix.broken:
            return ""
        self._note_cut_character(text)
        self._prefix.feed(text)
        if self._prefix.broken:
            self._has_words = _may_be_around_a_document("".join(self._pieces))
            if not self._has_words:
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

    def is_fit(self, text: str) -> bool:
        """Returns whether a text would be the document."""
        if not text.lstrip().startswith(("{", "[")):
            return False
        try:
            return not self._schema.mismatch(loads(text), len(text))
        except (ValueError, UnjudgedError):
            return False

    def finish(self, *, cut: bool, called: bool) -> None:
        """Checks the whole document, unless the request's own limits have cut it.

        Args:
            cut: Whether they did.
            called: Whether there are calls, so that words need not have a document among them.
        """
        if self._has_words:
            self._leave_words_out(called=called)
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

    def _leave_words_out(self, *, called: bool) -> None:
        """Puts the one document among the words in the place of them all, or nothing where there are calls."""
        text = "".join(self._pieces)
        sent = text[: len(text) - len(self.held)]
        brackets = "{" if self._schema.is_of_objects else "{["
        begin = min((place for sign in brackets if (place := text.find(sign)) >= 0), default=len(text))
        document = text[begin : max(text.rfind("}"), text.rfind("]")) + 1]
        prefix = JsonPrefix(begins=brackets)
        prefix.feed(document)
        words = f"{text[:begin]}\n{text[begin + len(document) :]}"
        if prefix.complete and not (sent[:begin].strip() or self._may_call(words)):
            self._log.report(Outcome.RESCUED, "the document read from the words around it", Severity.NOTE)
            self._note_cut_character(document)
            self._prefix, self._pieces = prefix, [document]
            self._held = [document[max(0, len(sent) - begin) :]]
        elif called and not sent.strip():
            self._log.report(Outcome.RESCUED, "calls with words where a document was due", Severity.NOTE)
            self._held = []
        else:
            self._log.report(Outcome.INVALID_JSON, "the content is not JSON")

    def _note_cut_character(self, text: str) -> None:
        if REPLACEMENT in text:
            self._log.report(Outcome.TRUNCATED, "a cut character in the document", Severity.SUSPECT, once=True)

    def _may_call(self, words: str) -> bool:
        """Returns whether words around an object may make it the arguments of a call, or a call, that was lost."""
        named = any(name in words for name in self._tools)
        return named or any(canonical(marker.group()) in OPENINGS for marker in MARKUP.finditer(words))

    @property
    def held(self) -> str:
        return "".join(self._held)

    def flush(self) -> str:
        """Returns everything that was held back, right or wrong."""
        held, self._held = self.held, []
        return held


def _may_be_around_a_document(text: str) -> bool:
    """Returns whether a text that is no JSON may be words around some: in front of it, or behind all of it."""
    text = text.lstrip()
    if not text.startswith(("{", "[")):
        return bool(text)  # or it was lost in space
    try:
        _, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return _BRACKET.search(text, end) is None
