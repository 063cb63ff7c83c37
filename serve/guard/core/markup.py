"""Finds markup of the known tool-call formats where none should be, in streamed and in whole text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

Quoted = Callable[[str], bool]
REPLACEMENT = "\ufffd"
_LITERALS = (
    "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "<think>", "</think>",
    "<tool_code>", "<tool_response>", "<argname>", "<argvalue>", "<arg_key>", "<arg_value>", "◁think▷", "◁/think▷",
)  # fmt: skip
# The closing bracket may be missing: half a marker is none of the words of an answer, either.
_SPECIAL = (
    r"\|(?:tool_calls?(?:_section|_argument)?_(?:begin|end)|im_(?:start|end|user|assistant|system|middle)"
    r"|reserved_token_\d+|endoftext|media_(?:begin|content|end|pad)|start_header_id|end_header_id)\|>?"
)
_AFTER_BRACKET = "|".join([_SPECIAL, *(re.escape(literal[1:]) for literal in _LITERALS if literal.startswith("<"))])
# The bracket before all the rest: at every other character, the pattern fails at once.
MARKUP = re.compile(rf"<(?:{_AFTER_BRACKET})|◁/?think▷")
# One of these is in every text that holds markup. Looking for each takes less than trying the pattern at every `<`.
_STARTS = ("<|tool_call", "<|im_", "<|reserved_token_", "<|endoftext|", "<|media_", "_header_id|", *_LITERALS)
_LONG = 4096  # characters, from which on that pays
_WINDOW = 64 * 1024  # characters that are searched at once: no other thread runs meanwhile
# A key that an XML parser made of `<parameter=parameter=city>`.
_ODD_STARTS = ('"parameter=', '"<parameter=', '"function=', '"<function=')
_ODD_KEY = re.compile(r'"<?(?:parameter|function)=')
_UNFINISHED_SPECIAL = re.compile(r"<(?:\|[a-z_0-9]{0,40}\|?)?\Z")
_PREFIXES = frozenset(literal[:length] for literal in _LITERALS for length in range(1, len(literal)))
_LONGEST = 48  # characters of the longest marker
CALL_OPENERS = ("<|tool_call", "<tool_call>", "<function=")


def find_markup(text: str, quoted: Quoted, before: str = "") -> re.Match[str] | None:
    """Returns the first markup in `text` that should not be there.

    Args:
        text: Where to look.
        quoted: Whether the request holds a text itself, so that an answer may well repeat it.
        before: The character in front of `text`. Markup after a backtick is a quotation: "write `<tool_call>` first".
    """
    if not _may_hold_markup(text):
        return None
    for match in _matches(MARKUP, text):
        ahead = text[match.start() - 1] if match.start() else before
        if ahead != "`" and not quoted(match.group()):
            return match
    return None


def find_in_arguments(text: str, quoted: Quoted) -> re.Match[str] | None:
    """Returns the first markup that should not be in the JSON text of a call's arguments."""
    of_markup = _matches(MARKUP, text) if _may_hold_markup(text) else ()
    odd_keys = _matches(_ODD_KEY, text) if _holds(text, _ODD_STARTS) else ()
    return next((match for match in chain(of_markup, odd_keys) if not quoted(match.group())), None)


def all_markup(text: str) -> frozenset[str]:
    """Returns every markup that a text holds."""
    return frozenset(match.group() for match in _matches(MARKUP, text)) if _may_hold_markup(text) else frozenset()


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for start in range(0, len(text), _WINDOW):
        end = start + _WINDOW
        yield from (match for match in pattern.finditer(text, start, end + _LONGEST) if match.start() < end)


def _may_hold_markup(text: str) -> bool:
    return len(text) <= _LONG or (_holds(text, ("<", "◁")) and _holds(text, _STARTS))


def _holds(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)


def unfinished(text: str) -> int:
    """Returns the length of the end of `text` that may begin markup, or 0."""
    tail = text[-_LONGEST:]
    for place, char in enumerate(tail):
        if char in "<◁":
            rest = tail[place:]
            if rest in _PREFIXES or _UNFINISHED_SPECIAL.match(rest):
                return len(rest)
    return 0


class MarkupScanner:
    """Passes streamed text on, up to the first markup.

    Args:
        quoted: As of `find_markup`.

    Attributes:
        opening: The first piece of a leak; it begins with the markup. Empty if there is none.
    """

    def __init__(self, quoted: Quoted) -> None:
        self.opening = ""
        self._leak: list[str] = []
        self._quoted = quoted
        self._held = ""
        self._before = ""

    def feed(self, text: str) -> str:
        """Returns the text that may go on; what could be the beginning of markup is held back."""
        if self.opening:
            self._leak.append(text)
            return ""
        if not self._held and "<" not in text and "◁" not in text:
            self._before = text[-1:] or self._before
            return text
        text = self._held + text
        match = find_markup(text, self._quoted, self._before)
        if match is not None:
            place = match.start()
            self.opening = text[place:]
            self._held = ""
            return text[:place]
        ready = len(text) - unfinished(text)
        self._held = text[ready:]
        self._before = text[:ready][-1:] or self._before
        return text[:ready]

    @property
    def leak(self) -> str:
        """All text from the first markup on."""
        return self.opening + "".join(self._leak)

    def finish(self) -> str:
        """Returns what was held back and turned out to be text."""
        held = self._held
        self._held = ""
        return held
