"""Quotations in streamed Markdown: whether a place stands in a code block, a code span or a block quote."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?(`{3,}|~{3,})")
_TICKS = re.compile("`+")
_CODE = re.compile(rf"^{_FENCE.pattern}.*?(?:^[ \t>]*\1|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_MOST_PIECES = 512  # before they are read
MOST_OF_A_LINE = 4096  # characters of a line in which a code span may have begun
_MOST_OF_A_BEGINNING = 128  # characters of it that may say what the line is
_MARKS = "\"'“”‘’«»„「『"

Kind = Literal["", "mark", "block quote", "span", "fence"]


class Quotation:
    """Reads a text as far as it is no markup, and tells in what a marker behind it stands.

    Reading is put off until a marker asks, since most texts hold none.

    Args:
        notice: Looks for something in all text on its way; None if there is nothing to look for.
    """

    def __init__(self, notice: Callable[[str], bool] | None = None) -> None:
        self._notice = notice
        self._found = False
        self._fence = ""  # the run of characters that opened a code block
        self._line = ""  # the present one; of a long one the end
        self._begin = ""  # its first characters
        self._length = 0
        self._pieces: list[str] = []

    def feed(self, text: str) -> None:
        """Adds text."""
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
    def kind(self) -> Kind:
        """The kind of quotation that the place stands in."""
        line = self.line
        if self._fence or (_FENCE.match(self._begin) and not self._ticks):
            return "fence"
        if self._begin.lstrip().startswith(">"):
            return "block quote"
        if self._ticks:
            return "span"
        return "mark" if line[-1:] and line[-1] in _MARKS else ""

    @property
    def _ticks(self) -> str:
        """The backticks that opened a code span in the present line."""
        line = self._line
        if "`" not in line:
            return ""
        fence = _FENCE.match(self._begin) if self._length == len(line) else None
        open_ = ""
        for run in _TICKS.finditer(line, fence.end() if fence else 0):
            open_ = run.group() if not open_ else "" if run.group() == open_ else open_
        return open_

    def end_of_span(self, text: str, *, ended: bool) -> bool | None:
        """Returns whether the code span of the place ends in its line, as it must; None if that is still open.

        Args:
            text: What follows.
            ended: Whether nothing more will.
        """
        ticks = self._ticks
        line, newline, _ = text[:MOST_OF_A_LINE].partition("\n")
        for run in _TICKS.finditer(line):
            if run.group() == ticks and (run.end() < len(line) or newline or ended):
                return True
        return False if newline or ended or len(text) >= MOST_OF_A_LINE else None

    def ends_fence(self, line: str) -> bool:
        """Returns whether a line is the end of the code block of the place."""
        fence = self._fence or _FENCE.match(self._begin).group(1)  # type: ignore[union-attr]
        run = line.strip(" \t\r>")
        return len(run) >= len(fence) and run == fence[0] * len(run)

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
            text = self._line[-_MOST_OF_A_BEGINNING:] + text
            self._found = self._notice(text) and self._notice(_CODE.sub(" ", text))

    def _extend(self, text: str) -> None:
        self._length += len(text)
        self._line = (self._line + text)[-MOST_OF_A_LINE:]
        if len(self._begin) < _MOST_OF_A_BEGINNING:
            self._begin = (self._begin + text)[:_MOST_OF_A_BEGINNING]

    def _end_line(self) -> None:
        if self._length > MOST_OF_A_LINE:
            return  # no fence is as long
        line = self._line
        if self._fence:
            self._fence = "" if self.ends_fence(line) else self._fence
        elif (opening := _FENCE.match(line)) and opening[1][0] not in line[opening.end() :]:
            self._fence = opening[1]
