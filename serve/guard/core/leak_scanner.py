"""Passes a streamed text on, up to the first markup that does not belong there.

Markup in code, a block quote or a numbered line of a file belongs to the text, as does a mention.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Literal

from serve.guard.core.markup import (
    BEGINS,
    ENDS,
    ENDS_OF_CALLS,
    ENDS_OF_THOUGHTS,
    MARKUP,
    PROMPTED_THOUGHTS,
    RUN_IN_JSON,
    THOUGHTS,
    canonical,
    half_marker,
    is_reserved,
    unfinished,
)
from serve.guard.core.shape import AHEAD, OPENINGS, MarkerPlace, MarkerShape, shape_of, shape_of_object, words_of_a_call

# Text without any of these is no markup, wherever it stands. With `]` a marker of MiniMax begins.
MARKS = re.compile(r"[<◁\[\]{]")
# A bracket may begin a call, or a list of calls, that has lost its marker.
_OPENING = re.compile(rf"\{{|\[(?=\s*[\[{{]|\s+\Z)|{MARKUP.pattern}")
_MARKS_IN_JSON = re.compile(r"[<◁\]]")
_TAGS = ("<tool_call", "<function", "<parameter")
_MOST_WAITING = 4096  # characters of markup without end inside a string of JSON


# Quotations, which may hold any markup

_FRONT = r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*"
# What opens code beside fences, and what ends it.
_ELEMENTS = {
    "<pre>": "</pre>", "<pre ": "</pre>", "<!--": "-->", r"\begin{verbatim}": r"\end{verbatim}",
    r"\begin{lstlisting}": r"\end{lstlisting}", r"\begin{minted}": r"\end{minted}",
}  # fmt: skip
_BLOCK = re.compile(rf"{_FRONT}(`{{3,}}|~{{3,}}|{'|'.join(map(re.escape, _ELEMENTS))})")
_MARKDOWN = re.compile(rf"{_FRONT}(?:```|~~~)(?:markdown|md)\b")  # a longer fence tells its own end
_CALLING = re.compile(rf"{_FRONT}`{{3,}}tool(?:_(?:code|calls?|use))?\b")  # as if the block itself were the call
_FENCE_BEHIND_TEXT = re.compile(r"(`{3,})[\w+-]*[ \t\r]*\Z")
_ITEM = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)+")  # of a list, up to its text
_INDENTATION = 4  # columns
_PARAGRAPHS_END = re.compile(r"\n[ \t]*\r?\n")
_TICKS = re.compile("`+")
_CODE = re.compile(
    rf"^{_FRONT}(?:(`{{3,}}(?!tool_c)|~{{3,}}).*?(?:^[ \t>]*\1|\Z)"
    + "".join(rf"|{re.escape(begin)}.*?(?:{re.escape(end)}|\Z)" for begin, end in _ELEMENTS.items())
    + r")|(?<=\n\n)(?:(?: {4}|\t)[^\n]*\n*)+|`[^`\n]+`",
    re.MULTILINE | re.DOTALL,
)
_NUMBERED = re.compile(r"[ \t]*(?:\d{1,6} ?[→│|\t]|[\w./\\-]{1,256}:\d{1,6}[:-])")  # a line of a file, as tools show it
_MOST_PIECES = 512  # before they are read
_MOST_OF_A_LINE = 4096  # characters of a line in which a code span may have begun
_MOST_OF_A_BEGINNING = 128  # characters of it that may say what the line is
_MARKS = "\"'“”‘’«»„「『"

_Kind = Literal["", "mark", "block quote", "span", "fence", "indented"]


class LeakScanner:
    """Passes one text of a choice on as it comes; what could be a leak waits until the text behind it decides.

    What goes out does not depend on how the text was cut.

    Args:
        name: Of the field.
        tools: Names of the tools that may be called.
        patient: Whether stray markup stops the text; otherwise it passes and is noticed, since no rerun would follow.
        document: Whether the text should be a JSON document.

    Attributes:
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
        self._json: bool | None = None if document else False
        speaks = name == "content" and not document and bool(tools)
        self._quotation = _Quotation(partial(words_of_a_call, tools=tools) if speaks else None)
        self._held: list[str] = []  # from the marker on that waits, or the beginning of one
        self._cut = False  # at its end, so that a quotation may lack its own
        self._followed = False  # by a call
        self._in_fence = False  # a call waits for the end of the code block that it stands in
        self._behind_fence = False  # or for words behind that end
        self._last_line = ""  # of what waits there
        self._quoted_to = 0  # where in the text at hand a code block ends, or a code span of several lines
        self._spans = False  # it is such a span
        self._silent = True  # nothing but space so far
        self._thinking = 0
        self._begun: Counter[str] = Counter()

    def feed(self, text: str) -> str:
        """Returns the text that may go on."""
        if self.leak_begun:
            self._held.append(text)
            return ""
        if not self._held:
            if MARKS.search(text) is None or (self._json and _MARKS_IN_JSON.search(text) is None):
                self._pass(text)
                return text
            return self._scan(text, ended=False)
        self._held.append(text)
        if (self._in_fence and not self._fence_ends(text)) or (self._behind_fence and text.isspace()):
            return ""
        return self._scan("".join(self._held), ended=False)

    @property
    def idle(self) -> bool:
        """True if nothing waits, so that text without `MARKS` goes on as it comes."""
        return not (self._held or self.leak_begun)

    def pause(self) -> str:
        """Returns what was held back and is text if nothing more comes: another text or a call has begun.

        What is no text then goes on waiting, since more may come.
        """
        if self.leak_begun or not self._held:
            return ""
        self._followed = True
        ready = self._scan("".join(self._held), ended=True)
        self.leak_begun = False
        self.shape = MarkerShape.MENTION
        return ready

    def finish(self, *, cut: bool = False) -> str:
        """Returns what was held back and turned out to be text; there may be a leak now.

        Args:
            cut: Whether the request's own limits ended the text, so that a quotation need not have its end.
        """
        if self.leak_begun:
            return ""
        self._cut = cut
        rest = self._scan("".join(self._held), ended=True) if self._held else ""
        self.strayed = self.strayed or self._quotation.noticed
        return rest

    @property
    def leak(self) -> str:
        return "".join(self._held) if self.leak_begun else ""

    @property
    def head(self) -> str:
        """The first characters of the leak, as many as name its call."""
        return "".join(self._held[:AHEAD])[:AHEAD] if self.leak_begun else ""

    @property
    def tail(self) -> str:
        """The last characters of the leak, as many as the head has."""
        return "".join(self._held[-AHEAD:])[-AHEAD:] if self.leak_begun else ""

    def flush(self) -> str:
        held, self._held = "".join(self._held), []
        return held

    def acquit(self) -> str:
        """Returns all text from the leak on, which is none after all."""
        self.leak_begun = False
        self.shape = MarkerShape.MENTION
        return self.flush()

    def _scan(self, text: str, *, ended: bool) -> str:
        self._held = []
        self._in_fence = self._behind_fence = False
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
            passed = text[match.start() : place]
            self._pass(passed.replace("\n", " ") if self._spans else passed)
            self._spans = False

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
        # An end of nothing takes no end from what begins behind it.
        self._thinking = max(0, self._thinking + (marker in THOUGHTS) - (marker in ENDS_OF_THOUGHTS))
        if marker in ENDS:
            self._begun[ENDS[marker]] = max(0, self._begun[ENDS[marker]] - 1)
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
            return MarkerShape.STRAY if self._json is False else MarkerShape.MENTION  # words before a document
        if meant in ENDS_OF_THOUGHTS and self._thinking > 0:
            return MarkerShape.MENTION
        line = self._quotation.line
        shape = shape_of(MarkerPlace(text, match.start(), match.end(), line, ended, self._tools))
        if shape in (MarkerShape.MENTION, MarkerShape.OPEN):
            return shape
        return self._shape_in_quotation(text, match.end(), shape, ended=ended)

    def _shape_in_quotation(self, text: str, place: int, shape: MarkerShape, *, ended: bool) -> MarkerShape:
        """Returns what a marker is that has a shape, by the quotation that it may stand in."""
        match self._quotation.kind:
            case "mark" | "block quote":
                return MarkerShape.MENTION
            case "span":
                return self._shape_in_span(text, place, shape, ended=ended)
            case "indented":
                return self._shape_in_indented(text, place, shape, ended=ended)
            case "fence":
                stray = shape is MarkerShape.STRAY
                return MarkerShape.MENTION if stray else self._shape_in_fence(text, place, ended=ended)
            case _:
                return shape

    def _shape_of_object(self, text: str, start: int, *, ended: bool) -> MarkerShape:
        """Returns what a bracket of JSON is: stray, where it begins a line and a call to a tool without its marker."""
        quotation = self._quotation
        if self._json or self._thoughts or not self._tools or not quotation.line_is_blank:
            return MarkerShape.MENTION
        shown = quotation.shows_json
        if shown and not quotation.leads:
            return MarkerShape.MENTION
        shape = shape_of_object(text[start : start + AHEAD], self._tools, ended=ended)
        return self._shape_of_block(text, start, ended=ended) if shown and shape is MarkerShape.STRAY else shape

    def _shape_of_block(self, text: str, start: int, *, ended: bool) -> MarkerShape:
        """Returns what a call in JSON is that the answer's first code block begins with: stray, if it says no more.

        Whoever shows a call says something about it.
        """
        shape = self._shape_in_fence(text, start, ended=ended)
        if shape is not MarkerShape.MENTION or self._cut or self._followed:
            return shape
        _, _, behind = text[self._quoted_to :].partition("\n") if self._quoted_to else ("", "", "")
        if behind.strip():
            return MarkerShape.MENTION
        self._behind_fence = not ended
        return MarkerShape.STRAY if ended else MarkerShape.OPEN

    def _shape_in_span(self, text: str, place: int, shape: MarkerShape, *, ended: bool) -> MarkerShape:
        """Returns what a marker is that has a shape, behind what may open a code span: data, if that has an end."""
        end = self._quotation.end_of_span(text[place : place + _MOST_OF_A_LINE], ended=ended)
        if end is None and not ended:
            return MarkerShape.OPEN
        if end is None and self._cut:
            end = len(text) - place
        if end is None or end < 0:
            return shape
        if "\n" in text[place : place + end]:
            self._quoted_to, self._spans = place + end, True
        return MarkerShape.MENTION

    def _shape_in_indented(self, text: str, place: int, shape: MarkerShape, *, ended: bool) -> MarkerShape:
        """Returns what a marker is that has a shape, in an indented line: data, if the next is indented or blank."""
        newline = text.find("\n", place, place + _MOST_OF_A_LINE)
        if newline < 0:
            waits = not ended and len(text) - place < _MOST_OF_A_LINE
            return MarkerShape.OPEN if waits else MarkerShape.MENTION if ended else shape
        behind = text[newline + 1 : newline + 1 + _MOST_OF_A_BEGINNING]
        line = behind.lstrip(" \t\r")
        if not line and not ended and len(behind) < _MOST_OF_A_BEGINNING:
            return MarkerShape.OPEN
        goes_on = line[:1] in ("", "\n") or self._quotation.is_deep(behind)
        return MarkerShape.MENTION if goes_on else shape

    def _shape_in_fence(self, text: str, place: int, *, ended: bool) -> MarkerShape:
        """Returns what a call in a code block is: an example, once the block has an end."""
        while (newline := text.find("\n", place)) >= 0:
            if self._quotation.ends_fence(text[place:newline]):
                self._quoted_to = place
                return MarkerShape.MENTION
            place = newline + 1
        self._last_line = text[place:]
        if ended:
            closed = self._cut or self._quotation.ends_fence(self._last_line)
            return MarkerShape.MENTION if closed else MarkerShape.STRAY
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
        surplus = marker in ENDS and not self._begun[ENDS[marker]]
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


class _Quotation:
    """Reads a text as far as it is no markup, and tells in which kind of quotation a marker behind it stands.

    Reading is put off until a marker asks, since most texts hold none. `notice` looks for something in all text.
    """

    def __init__(self, notice: Callable[[str], bool] | None = None) -> None:
        self._notice = notice
        self._found = False
        self._fence = ""  # what ends the code block that is open
        self._nests = False  # the block is one of Markdown, which may show code blocks
        self._calls = False  # the block says that it is a call
        self._inner = False  # such a one is open
        self._leads = False  # the block begins the text, and has nothing in it so far
        self._line = ""  # the present one; of a long one the end
        self._begin = ""  # its first characters
        self._length = 0
        self._said = False  # a text stands before the line
        self._blank = False  # nothing is in the line before
        self._indented = False  # the last line with something in it was of an indented code block
        self._margin = 0  # the column of the text of the list's item
        self._pieces: list[str] = []

    def feed(self, text: str) -> None:
        self._pieces.append(text)
        if len(self._pieces) > _MOST_PIECES:
            self._read()

    @property
    def noticed(self) -> bool:
        """True if the text held what was to be noticed, outside of code blocks and spans."""
        if self._pieces:
            self._look("".join(self._pieces))  # the lines need not be read for that
        return self._found

    @property
    def line(self) -> str:
        """The present line, up to the place."""
        self._read()
        return self._line

    @property
    def line_is_blank(self) -> bool:
        """True if nothing but space stands before the place in its line."""
        return not self.line or self.line.isspace()

    @property
    def kind(self) -> _Kind:
        """The kind of quotation that the place stands in."""
        line = self.line
        if self._opened if not self._fence else not self.ends_fence(line):
            return "fence"
        if self._begin.lstrip().startswith(">") or _NUMBERED.match(self._begin):
            return "block quote"
        if self._is_indented:
            return "indented"
        if self._ticks:
            return "span"
        return "mark" if line[-1:] and line[-1] in _MARKS else ""

    @property
    def shows_json(self) -> bool:
        """True if JSON at the place is quoted."""
        kind = self.kind
        return kind != "" and not (kind == "fence" and self._calls)

    @property
    def leads(self) -> bool:
        """True if nothing but the beginning of a code block stands before the place."""
        return self._leads and self.line_is_blank

    @property
    def _opened(self) -> str:
        """The end of the code that the present line opens; empty if it ends there or there is none."""
        if (opening := _BLOCK.match(self._begin)) is None:
            return ""
        end = _ELEMENTS.get(opening[1])
        return "" if (end or opening[1][0]) in self._line[opening.end() :] else end or opening[1]

    @property
    def _ticks(self) -> str:
        """The backticks that opened a code span in the present line."""
        line = self._line
        if "`" not in line:
            return ""
        fence = _BLOCK.match(self._begin) if self._length == len(line) else None
        open_ = ""
        for run in _TICKS.finditer(line, fence.end() if fence else 0):
            open_ = run.group() if not open_ else "" if run.group() == open_ else open_
        return open_

    def end_of_span(self, text: str, *, ended: bool) -> int | None:
        """Returns where the code span of the place ends; -1 if nowhere, None if that is still open.

        It ends in its line, or in its paragraph if nothing stands before the place in it.
        """
        ticks = self._ticks
        several = self._line.endswith(ticks)
        last = _PARAGRAPHS_END.search(text) if several else re.search("\n", text)
        part = text[: last.start()] if last else text
        for run in _TICKS.finditer(part):
            if run.group() == ticks and (run.end() < len(part) or last or ended):
                return run.end()
        return -1 if last or len(text) >= _MOST_OF_A_LINE else None

    @property
    def _is_indented(self) -> bool:
        """True in an indented code block, which begins behind a text and a blank line."""
        return (self._indented or (self._said and self._blank)) and self.is_deep(self._begin)

    def is_deep(self, line: str) -> bool:
        """Returns whether a line that is not blank is indented far enough for code."""
        return _column(line) >= self._margin + _INDENTATION

    def ends_fence(self, line: str) -> bool:
        """Returns whether a line is the end of the code block of the place."""
        end = self._fence or self._opened
        if end[0] not in "`~":
            return end in line
        run = line.strip(" \t\r>")
        return len(run) >= len(end) and run == end[0] * len(run)

    def _read(self) -> None:
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces = []
        self._look(text)
        first, *lines = text.split("\n")
        self._extend(first)
        for line in lines:
            self._end_line()
            self._line = self._begin = ""
            self._length = 0
            self._extend(line)

    def _look(self, text: str) -> None:
        if self._notice is not None and not self._found and not self._fence:
            front = "\n\n" if self._is_indented else ""
            text = front + self._line[-_MOST_OF_A_BEGINNING:] + text
            self._found = self._notice(text) and self._notice(_CODE.sub(" ", text))

    def _extend(self, text: str) -> None:
        self._length += len(text)
        self._line = (self._line + text)[-_MOST_OF_A_LINE:]
        if len(self._begin) < _MOST_OF_A_BEGINNING:
            self._begin = (self._begin + text)[:_MOST_OF_A_BEGINNING]

    def _end_line(self) -> None:
        behind_blank, begins = self._blank, not self._said
        self._place_line()
        if self._length > _MOST_OF_A_LINE:
            return  # no fence is as long
        line = self._line
        if self._fence:
            self._end_line_of_fence(line, behind_blank=behind_blank)
        elif opened := self._opened:
            self._fence = opened
            self._leads = begins
            self._nests = _MARKDOWN.match(line) is not None
            self._calls = _CALLING.match(line) is not None
        elif "```" in line and (behind := _FENCE_BEHIND_TEXT.search(line)) and behind[1] == self._ticks:
            self._fence = behind[1]  # what Markdown takes for a code span of several lines

    def _end_line_of_fence(self, line: str, *, behind_blank: bool) -> None:
        """Notes a fence in a code block: its end, or one within it where the block shows Markdown."""
        self._leads = self._leads and self._blank
        ends = self.ends_fence(line)
        if self._inner:
            self._inner = not ends
        elif self._nests and (behind_blank if ends else self._opened.startswith(self._fence)):
            self._inner = True
        elif ends:
            self._fence, self._nests = "", False

    def _place_line(self) -> None:
        """Notes what the present line is to those behind it: blank, code, or a text with its margin."""
        begin = self._begin
        if not begin or begin.isspace():
            self._blank = True
            return
        self._indented = not self._fence and self._is_indented
        if not (self._fence or self._indented):
            self._said = True
            if (item := _ITEM.match(begin)) is not None:
                self._margin = len(item.group().expandtabs(4))
            elif self._margin and self._blank:
                self._margin = min(self._margin, _column(begin))
        self._blank = False


def _column(line: str) -> int:
    """Returns the column of the first character of a line that is no blank."""
    if line[:1] not in (" ", "\t"):
        return 0
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))
