"""The texts of one choice in one attempt: free of markup, and one JSON document where the request demands one."""

from __future__ import annotations

from serve.guard.core.client_view import ClientView, Delta
from serve.guard.core.document import DocumentGuard
from serve.guard.core.expectation import Expectation
from serve.guard.core.leak_scanner import LeakScanner
from serve.guard.core.marker_table import REPLACEMENT
from serve.guard.core.severity import Severity
from serve.guard.core.shape import MarkerShape
from serve.guard.core.verdict import DefectLog, Outcome


class TextGuard:
    """Returns the part of each text that may go out, and keeps leaked markup back.

    Args:
        expectation: Of the request.
        view: What the client has of this choice.
        log: Takes the defects.
        document: Guards the content, if it must be a JSON document.

    Attributes:
        leaking: True once a text holds a leak.
        spoke: True once the content holds more than space.
    """

    def __init__(
        self, expectation: Expectation, view: ClientView, log: DefectLog, document: DocumentGuard | None
    ) -> None:
        self.leaking = False
        self.spoke = False
        self._expected = expectation
        self._view = view
        self._log = log
        self._document = document
        self._scanners: dict[str, LeakScanner] = {}

    def feed(self, name: str, text: str) -> str:
        """Returns the text that may go out now.

        Args:
            name: Of the field.
            text: What the engine adds to it.
        """
        if not self.spoke and name == "content":
            self.spoke = not (text == "" or text.isspace())
        scanner = self._scanners.get(name) or self._scanner(name)
        ready = self._pass(name, scanner.feed(text))
        if scanner.leak_begun:
            self.leaking = True
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

    def leaks(self) -> dict[str, str]:
        """Leaked markup and all text after it, by field."""
        return {name: scanner.leak for name, scanner in self._scanners.items() if scanner.leak_begun}

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
            if (held := scanner.finish()) and (text := self._pass(name, held)):
                ready[name] = text
            if scanner.strayed:
                self._log.report(Outcome.MARKER_LEAK, f"markup in {name}", Severity.SUSPECT, once=True)
        document = self._document
        leaks = self.leaks()
        if document is not None and "content" not in leaks and (document.started or not (called or leaks)):
            document.finish(cut=cut)
            if not self._log.blocked and (text := self._extend_document(document.flush())):
                ready["content"] = ready.get("content", "") + text
        return ready

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

    def _extend_document(self, text: str) -> str:
        """Returns the part of a document's text that the client does not have yet."""
        ready = self._view.feed_text("content", text) if text else ""
        if self._view.diverged("content"):
            self._log.contradicts = True
            self._log.report(Outcome.FAILED, "the rerun's document does not begin with what went out", once=True)
        return ready
