"""Position in JSON text that arrives in pieces: how deep it is nested, and whether it is inside a string."""

from __future__ import annotations

import re

_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BRACKETS = re.compile(r'["{}\[\]]')
_SIGNS = re.compile(r'["{}\[\],:]')


class JsonScanner:
    """Follows JSON text without validating it, so it keeps going where the text is malformed.

    Attributes:
        depth: Number of brackets that are open.
        in_string: True if the text so far ends inside a string.
    """

    __slots__ = ("_escaped", "depth", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def feed(self, text: str, place: int = 0, depth: int = 0) -> int:
        """Reads on to the next sign that stands no deeper than `depth`.

        A sign is a bracket, a comma, a colon, or a quote that begins or ends a string. A bracket stands as deep as the
        value that it opens or closes: the outermost ones at depth 0. Returns the place after the sign, or -1 if it has
        not come yet.
        """
        while True:
            if self.in_string:
                place = self._end_string(text, place)
                if place < 0:
                    return -1
                if self.depth <= depth:
                    return place
            match = (_BRACKETS if self.depth > depth else _SIGNS).search(text, place)
            if match is None:
                return -1
            place = match.end()
            sign = match.group()
            outer = self.depth
            if sign == '"':
                self.in_string = True
            elif sign in "{[":
                self.depth += 1
            elif sign in "}]":
                self.depth -= 1
                outer = self.depth
            if outer <= depth:
                return place

    def feed_value(self, text: str, place: int = 0) -> int:
        """Reads on to the end of the outermost object or list; returns the place after it, or -1."""
        place = self.feed(text, place)
        while place >= 0 and self.depth > 0:
            place = self.feed(text, place)
        return place

    def _end_string(self, text: str, place: int) -> int:
        """Reads on to the end of the string at hand; returns the place after it, or -1."""
        if self._escaped:
            self._escaped = False
            place += 1
        match = _STRING.match(text, place)
        assert match is not None  # the pattern matches the empty text
        place = match.end()
        if place == len(text):
            return -1
        self._escaped = text[place] == "\\"
        self.in_string = self._escaped
        return -1 if self._escaped else place + 1

    def feed_strings(self, text: str) -> bool:
        """Reads all of a piece for its strings alone; faster than `feed`, but leaves `depth` as it is.

        A backslash escapes outside strings, too: a model that escapes a whole document opens no string.

        Returns:
            The new value of `in_string`.
        """
        if "\\" not in text and not self._escaped:
            if '"' in text and text.count('"') & 1:
                self.in_string = not self.in_string
            return self.in_string
        start = 1 if self._escaped else 0
        quotes = 0
        end = start
        for match in _QUOTES.finditer(text, start):
            quotes += match.group() == '"'
            end = match.end()
        self._escaped = text.find("\\", end) >= 0
        if quotes & 1:
            self.in_string = not self.in_string
        return self.in_string
