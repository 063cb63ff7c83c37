"""Finds the words of a call whose markers were skipped when the output was decoded."""

from __future__ import annotations

import re


class PatternWatch:
    """Looks for a pattern in text that arrives in pieces.

    Args:
        pattern: What to find. It must not look further than `longest` characters.
        longest: The longest text that it matches, with what it looks at in front.
    """

    def __init__(self, pattern: re.Pattern[str], longest: int) -> None:
        self._pattern = pattern
        self._longest = longest
        self._tail = ""
        self._found = False

    def clear(self) -> None:
        """Begins another text."""
        self._tail = ""
        self._found = False

    def feed(self, text: str, position: int) -> tuple[int, str] | None:
        """Reads the next piece, which begins at a position; returns position and text of the first match, once."""
        if self._found:
            return None
        window = self._tail + text
        for match in self._pattern.finditer(window):
            if match.end() > len(self._tail):  # what ended before was looked at with all that stands in front of it
                self._found = True
                return position - len(self._tail) + match.start(), match.group()
        self._tail = window[-self._longest :]
        return None
