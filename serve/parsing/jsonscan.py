"""Where JSON text stands, kept over any pieces: inside a string or not, and how deep."""

from __future__ import annotations

import re

_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'\\.|["\\]', re.DOTALL)


class Strings:
    """Whether text that has come so far ends inside a JSON string."""

    __slots__ = ("_escaped", "inside")

    def __init__(self) -> None:
        self.inside = False
        self._escaped = False

    def feed(self, text: str) -> bool:
        if "\\" not in text and not self._escaped:
            if '"' in text and text.count('"') & 1:
                self.inside = not self.inside
            return self.inside
        start = 1 if self._escaped else 0
        quotes = 0
        end = start
        for match in _QUOTES.finditer(text, start):
            quotes += match.group() == '"'
            end = match.end()
        self._escaped = text.find("\\", end) >= 0
        if quotes & 1:
            self.inside = not self.inside
        return self.inside


class Depth:
    """Follows one JSON object or array to its end."""

    __slots__ = ("_escaped", "depth", "inside")

    def __init__(self) -> None:
        self.depth = 0
        self.inside = False
        self._escaped = False

    def feed(self, text: str, place: int = 0) -> int:
        """Read on from `place`; the place behind the last bracket, or -1 if it has not come."""
        if self._escaped:
            self._escaped = False
            place += 1
        while True:
            if self.inside:
                match = _STRING_END.search(text, place)
                if match is None:
                    return -1
                place = match.end()
                if match.group() == '"':
                    self.inside = False
                elif match.group() == "\\":
                    self._escaped = True
                    return -1
                continue
            match = _STRUCTURE.search(text, place)
            if match is None:
                return -1
            place = match.end()
            sign = match.group()
            if sign == '"':
                self.inside = True
            else:
                self.depth += 1 if sign in "{[" else -1
                if self.depth <= 0:
                    return place
