"""Passes a streamed text on, up to the first markup that does not belong there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import partial

from serve.guard.core.marker_table import (
    BEGINS,
    ENDS,
    ENDS_OF_CALLS,
    ENDS_OF_THOUGHTS,
    PROMPTED_THOUGHTS,
    THOUGHTS,
)
from serve.guard.core.markup import MARKUP, RUN_IN_JSON, canonical, half_marker, is_reserved, unfinished
from serve.guard.core.quotation import MOST_OF_A_LINE, Quotation
from serve.guard.core.shape import AHEAD, OPENINGS, MarkerPlace, MarkerShape, shape_of, shape_of_object, words_of_a_call

# A bracket may begin a call, or a list of calls, that has lost its marker.
_OPENING = re.compile(rf"{MARKUP.pattern}|\{{|\[(?=\s*[\[{{]|\s+\Z)")
_TAGS = ("<tool_call", "<function", "<parameter")
_MOST_WAITING = 4096  # characters of markup without end inside a string of JSON


class LeakScanner:
    """Passes one text of a choice on as it comes; what could be a leak waits until the text behind it decides.

    What goes out does not depend on how the text was cut.

    Args:
        name: Of the field.
        tools: Names of the tools that may be called.
        patient: Whether stray markup stops the text; otherwise it passes and is noticed, since no rerun would follow.
        document: Whether the text should be a JSON document.

    Attributes:
        leak_begun: True once there is a leak.
        shape: Of the leak: `CALL` or `STRAY`.
        strayed: True if stray markup has passed.
    """

    def __init__(self, name: str, tools: Collection[str], *, patient: bool, document: bool) -> None:
        self.leak_begun = False
        self.shape = MarkerShape.MENTION
        self.strayed = False
        self._thoughts = name != "content"
        self._tools = tools
        self._patient = patient
        self._document = document
        self._json: bool | None = None if document else False
        speaks = name == "content" and not document and bool(tools)
        self._quotation = Quotation(partial(words_of_a_call, tools=tools) if speaks else None)
        self._held: list[str] = []  # from the marker on that waits, or the beginning of one
        self._in_fence = False  # a call waits for the end of the code block that it stands in
        self._last_line = ""  # of what waits there
        self._quoted_to = 0  # where in the text at hand a code block ends
        self._silent = True  # nothing but space so far
        self._thinking = 0
        self._begun: Counter[str] = Counter()

    def feed(self, text: str) -> str:
        """Returns the text that may go on."""
        if self.leak_begun:
            self._held.append(text)
            return ""
        if not self._held:
            if (
                "<" not in text
                and "◁" not in text
                and "]" not in text  # with which a marker of MiniMax begins
                and (("{" not in text and "[" not in text) or self._json)
            ):
                if self._silent or self._json:
                    self._pass(text)
                else:
                    self._quotation.feed(text)
                return text
            return self._scan(text, ended=False)
        self._held.append(text)
        if self._in_fence and not self._fence_ends(text):
            return ""
        return self._scan("".join(self._held), ended=False)

    def finish(self) -> str:
        """Returns what was held back and turned out to be text; there may be a leak now."""
        if self.leak_begun:
            return ""
        rest = self._scan("".join(self._held), ended=True) if self._held else ""
        self.strayed = self.strayed or self._quotation.noticed
        return rest

    @property
    def leak(self) -> str:
        """All text from the leak on."""
        return "".join(self._held) if self.leak_begun else ""

    @property
    def head(self) -> str:
        """The first characters of the leak, as many as name its call."""
        return "".join(self._held[:AHEAD])[:AHEAD] if self.leak_begun else ""

    def flush(self) -> str:
        """Returns everything that was held back."""
        held, self._held = "".join(self._held), []
        return held

    def acquit(self) -> str:
        """Returns all text from the leak on, which is none after all."""
        self.leak_begun = False
        self.shape = MarkerShape.MENTION
        return self.flush()

    def _scan(self, text: str, *, ended: bool) -> str:
        self._held = []
        self._in_fence = False
        self._quoted_to = place = 0
        while True:
            match = _OPENING.search(text, place)
            if match is None:
                return self._scan_end(text, place, ended=ended)
            self._pass(text[place : match.start()])
            place = match.start()
            shape = self._shape(text, match, ended=ended)
            if shape is MarkerShape.STRAY and not self._patient:
                self.strayed = True
                shape = MarkerShape.MENTION
            if shape is not MarkerShape.MENTION:
                self._hold(text[place:], shape)
                return text[:place]
            self._count(match.group())
            place = max(match.end(), self._quoted_to)
            self._pass(text[match.start() : place])

    def _scan_end(self, text: str, place: int, *, ended: bool) -> str:
        """Takes text without markup, but maybe the beginning of a marker at its end."""
        end = len(text) - (half_marker(text[place:]) if ended else unfinished(text[place:]))
        self._pass(text[place:end])
        if end == len(text):
            return text
        if ended and (self._json or self._thoughts or self._quotation.kind):
            return text
        if ended and not self._patient:
            self.strayed = True
            return text
        self._hold(text[end:], MarkerShape.STRAY if ended else MarkerShape.OPEN)
        return text[:end]

    def _hold(self, text: str, shape: MarkerShape) -> None:
        self._held = [text]
        if shape is not MarkerShape.OPEN:
            self.leak_begun = True
            self.shape = shape

    def _pass(self, text: str) -> None:
        if self._silent and text and not text.isspace():
            self._silent = False
            if self._json is None:
                self._json = text.lstrip()[0] not in "<◁]"
        if self._json and "<" in text:  # tags of other forms begin what these ends end, too
            self._begun.update({begin: text.count(begin + " ") for begin in _TAGS})
        self._quotation.feed(text)

    def _count(self, marker: str) -> None:
        marker = canonical(marker)
        self._thinking += (marker in THOUGHTS) - (marker in ENDS_OF_THOUGHTS)
        if marker in ENDS:
            self._begun[ENDS[marker]] -= 1
        elif marker in BEGINS:
            self._begun[BEGINS[marker]] += 1

    def _shape(self, text: str, match: re.Match[str], *, ended: bool) -> MarkerShape:
        """Returns what a marker is where it stands."""
        marker = match.group()
        if marker in ("{", "["):
            return self._shape_of_object(text, match.start(), ended=ended)
        if self._json:
            return self._shape_in_json(text, match, ended=ended)
        meant = canonical(marker)
        if self._thoughts and meant not in OPENINGS:
            return MarkerShape.MENTION
        if self._silent and meant in THOUGHTS and meant not in PROMPTED_THOUGHTS:
            return MarkerShape.STRAY
        if meant in ENDS_OF_THOUGHTS and self._thinking > 0:
            return MarkerShape.MENTION
        line = self._quotation.line
        shape = shape_of(MarkerPlace(text, match.start(), match.end(), line, ended, self._tools))
        if shape in (MarkerShape.MENTION, MarkerShape.OPEN):
            return shape
        match self._quotation.kind:
            case "mark" | "block quote":
                return MarkerShape.MENTION
            case "span":
                ends = self._quotation.end_of_span(text[match.end() : match.end() + MOST_OF_A_LINE], ended=ended)
                return shape if ends is False else MarkerShape.MENTION if ends else MarkerShape.OPEN
            case "fence":
                return (
                    MarkerShape.MENTION
                    if shape is MarkerShape.STRAY
                    else self._shape_in_fence(text, match.end(), ended=ended)
                )
            case _:
                return shape

    def _shape_of_object(self, text: str, start: int, *, ended: bool) -> MarkerShape:
        """Returns what a bracket of JSON is: stray, where it begins a line and a call to a tool without its marker."""
        quotation = self._quotation
        if self._json or self._thoughts or not self._tools or not quotation.line_is_blank or quotation.kind:
            return MarkerShape.MENTION
        return shape_of_object(text[start : start + AHEAD], self._tools, ended=ended)

    def _shape_in_fence(self, text: str, place: int, *, ended: bool) -> MarkerShape:
        """Returns what a call in a code block is: an example, once the block has an end."""
        while (newline := text.find("\n", place)) >= 0:
            if self._quotation.ends_fence(text[place:newline]):
                self._quoted_to = place
                return MarkerShape.MENTION
            place = newline + 1
        self._last_line = text[place:]
        if ended:
            return MarkerShape.MENTION if self._quotation.ends_fence(self._last_line) else MarkerShape.STRAY
        self._in_fence = True
        return MarkerShape.OPEN

    def _fence_ends(self, text: str) -> bool:
        """Returns whether more text in a code block brings its end."""
        if "\n" not in text:
            self._last_line += text
            return False
        *lines, self._last_line = (self._last_line + text).split("\n")
        return any(map(self._quotation.ends_fence, lines))

    def _shape_in_json(self, text: str, match: re.Match[str], *, ended: bool) -> MarkerShape:
        """Returns what a marker is in a document: stray, if it ends what nothing began, right before a string's end."""
        marker = canonical(match.group())
        surplus = marker in ENDS and self._begun[ENDS[marker]] <= 0
        if not surplus and not is_reserved(marker):
            return MarkerShape.MENTION
        run = RUN_IN_JSON.match(text, match.end(), match.end() + _MOST_WAITING)
        end = run.end() if run else match.end()
        behind = text[end : end + _MOST_WAITING]
        if behind == "\\" or unfinished(behind) == len(behind):
            return MarkerShape.MENTION if ended else MarkerShape.OPEN
        if text[end] != '"':
            return MarkerShape.MENTION
        alone = self._quotation.line[-1:] == '"' and end == match.end() and marker not in ENDS_OF_CALLS
        return MarkerShape.MENTION if alone else MarkerShape.STRAY
