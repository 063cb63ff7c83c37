"""Splits text, however it is cut, into markers and the text between them; finds words whose markers were skipped."""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY_CHARACTERS = 256  # longest name inside an open-ended marker, so that what is held back stays bounded
_REST = rf"[^<>\n]{{0,{_KEY_CHARACTERS}}}"


class Token(NamedTuple):
    kind: str  # "" is text
    raw: str


class Lexicon:
    """The markers of a format.

    Args:
        markers: Kind of each spelling. A spelling that ends in `…` stands for all that follows up to the next `>`:
            `<function=…` is `<function=name>`. Of two markers that begin alike the longer one counts.
    """

    def __init__(self, markers: dict[str, str]) -> None:
        self.kinds = {spelling: kind for spelling, kind in markers.items() if not spelling.endswith("…")}
        self._open = {spelling[:-1]: kind for spelling, kind in markers.items() if spelling.endswith("…")}
        spellings = [*self.kinds, *self._open]
        longest_first = sorted(spellings, key=len, reverse=True)
        self.pattern = re.compile(
            "|".join(re.escape(text) + (_REST + ">" if text in self._open else "") for text in longest_first)
        )
        self._prefixes = frozenset(text[:size] for text in spellings for size in range(1, len(text)))
        self._prefixes |= self._open.keys()
        self._beginnings = self._prefixes & self.kinds.keys()  # markers that others begin with
        self._unclosed = re.compile("|".join(re.escape(start) + _REST for start in self._open) or r"(?!)")
        self._sign = spellings[0][0]
        others = "".join({text[0] for text in spellings} - {self._sign})
        self._other_sign = re.compile(f"[{re.escape(others)}]") if others else None
        self._any_sign = re.compile(f"[{re.escape(self._sign + others)}]")
        self._longest = max(map(len, spellings)) + (_KEY_CHARACTERS if self._open else 0)

    def kind(self, raw: str) -> str:
        """Returns the kind of a token; "" if it is text."""
        kind = self.kinds.get(raw)
        if kind or not raw.endswith(">") or not self.pattern.fullmatch(raw):
            return kind or ""
        return next(kind for start, kind in self._open.items() if raw.startswith(start))

    def is_plain(self, text: str) -> bool:
        """Returns whether no marker begins in `text`."""
        return self._sign not in text and (self._other_sign is None or self._other_sign.search(text) is None)

    def is_finished(self, text: str, marker: re.Match[str]) -> bool:
        """Returns whether no text behind a marker, which `text` may lack yet, can make another marker of it."""
        if marker.group() not in self._beginnings:
            return True
        return not self._may_go_on(text[marker.start() : marker.start() + self._longest])

    def unfinished(self, text: str, place: int) -> int:
        """Returns where in `text`, from `place` on, a marker begins that more text may complete; its length if none."""
        end = len(text)
        for match in self._any_sign.finditer(text, max(place, end - self._longest)):
            if self._may_go_on(text[match.start() :]):
                return match.start()
        return end

    def _may_go_on(self, tail: str) -> bool:
        return tail in self._prefixes or self._unclosed.fullmatch(tail) is not None


class Lexer:
    """Holds the end of a stream's text back while that may begin a marker."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.held = ""
        self._lexicon = lexicon

    def feed(self, text: str) -> list[Token]:
        return self._split(self.held + text, final=False)

    def finish(self) -> list[Token]:
        """Returns what was held back, and is no beginning of a marker after all."""
        return self._split(self.held, final=True)

    def _split(self, text: str, *, final: bool) -> list[Token]:
        lexicon = self._lexicon
        tokens = []
        place = 0
        for match in lexicon.pattern.finditer(text):
            if not final and not lexicon.is_finished(text, match):
                break
            if match.start() > place:
                tokens.append(Token("", text[place : match.start()]))
            tokens.append(Token(lexicon.kind(match.group()), match.group()))
            place = match.end()
        end = len(text) if final else lexicon.unfinished(text, place)
        self.held = text[end:]
        if end > place:
            tokens.append(Token("", text[place:end]))
        return tokens


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
