"""Patterns of JSON Schema, which are ECMAScript's, in the syntax of the validator's engine, with a bound of their cost.

The engine takes time linear in the text, times the pattern's states, so these are counted here. What is not regular
(look-around, back references) needs another engine, which tries one way after the other up to a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from serve.guard.core.schema_cost import UnjudgedError

_LONGEST = 4_096  # characters
_MOST_STATES = 16_000
_PATTERN_S = 60e-6
_STATE_S = 0.35e-6  # to compile
_LITERAL_STATE_S = 2.6e-6  # where the compiler looks for literal text
_WIDE_STATES = 12  # of a class with characters beyond ASCII: it is one of bytes
_RANGE_STATES = 4
_UNICODE_STATES = 700  # of a class such as \p{L}

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_ANY = r"[\x00-\x{10FFFF}]"
_NONE = r"[^\x00-\x{10FFFF}]"
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_RANGES = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
          (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
}  # fmt: skip
_CLASS_STATES = {"d": 1, "w": 1, "s": 30, "D": _WIDE_STATES, "W": _WIDE_STATES, "S": 40}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
ASCII = "(?-u:"
"""Begins what is ASCII: words, at whose bounds ECMAScript has no other letters."""
# The last three are Python's.
_ANCHORS = {"b": rf"{ASCII}\b)", "B": rf"{ASCII}\B)", "A": r"\A", "Z": r"\z", "z": r"\z"}

_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_LOW_HALF = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP](?:\{[A-Za-z0-9_=]{1,64}\}|[A-Z])")
_REFERENCE = re.compile(r"([1-9][0-9]{0,2})|k<([A-Za-z_]\w{0,63})>")
_GROUP = re.compile(r"\((?:\?(?:P?<([A-Za-z_]\w{0,63})>|([ims]{1,3}\)|[ims]{0,3}:)|(<?[=!]|>)))?")
_COUNT = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_MOST_DIGITS = 5  # of a count


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as the engine reads it.

    Attributes:
        states: Bound of the states of its automaton.
        regular: False if it needs the engine that tries.
        compile_s: The longest that compiling it takes.
    """

    text: str
    states: int
    regular: bool
    compile_s: float


def translate(pattern: str) -> Pattern:
    """Returns a pattern of ECMAScript as the engine reads it.

    Raises:
        UnjudgedError: It is too long or too large, or not a pattern.
    """
    if len(pattern) > _LONGEST:
        raise UnjudgedError("a long pattern")
    reader = _Reader(pattern)
    reader.read()
    if reader.states > _MOST_STATES:
        raise UnjudgedError("a pattern with too many states")
    compile_s = _PATTERN_S + reader.states * (_LITERAL_STATE_S if reader.literal else _STATE_S)
    text = "".join(reader.out)
    if not reader.regular:
        text = text.replace(ASCII, "(?:")  # the engine that tries has no such flag: its words are Unicode's
    return Pattern(text, reader.states, reader.regular, compile_s)


class _Reader:
    """Reads a pattern once, from left to right.

    Attributes:
        out: What is translated so far.
        states: Of the open group.
        regular: As in `Pattern`.
        literal: Whether anything in it stands for few characters.
    """

    def __init__(self, source: str) -> None:
        self.out: list[str] = []
        self.states = 0
        self.regular = True
        self.literal = False
        self._source = source
        self._at = 0
        self._atom = 0  # states of what a count would repeat
        self._groups: list[int] = []
        self._captures = 0
        self._named: dict[str, int] = {}  # the numbers of groups

    def read(self) -> None:
        while self._at < len(self._source):
            character = self._source[self._at]
            read = _READERS.get(character)
            if read is not None:
                read(self)
            else:
                self._at += 1
                self._emit(_literal(ord(character)), _width(ord(character)))

    def _emit(self, text: str, states: int) -> None:
        self.out.append(text)
        self.states += states
        self._atom = states
        self.literal = self.literal or states < _WIDE_STATES

    def _sign(self) -> None:
        """Reads an anchor or a bar."""
        self.out.append(self._source[self._at])
        self.states += 1
        self._atom = 1
        self._at += 1

    def _dot(self) -> None:
        self._emit(_DOT, _WIDE_STATES)
        self._at += 1

    def _group(self) -> None:
        found = _GROUP.match(self._source, self._at)
        if found is None or (self._source.startswith("(?", self._at) and found.end() == self._at + 1):
            raise UnjudgedError("not a pattern")
        name, flags, looks = found.groups()
        self._at = found.end()
        self.regular = self.regular and looks is None
        if name or found.group() == "(":
            self._captures += 1
        if name:
            self._named[name] = self._captures
        self.out.append(f"(?P<{name}>" if name else found.group())
        if flags is None or flags.endswith(":"):
            self._groups.append(self.states)
            self.states = 1

    def _end_group(self) -> None:
        if not self._groups:
            raise UnjudgedError("not a pattern")
        self.out.append(")")
        self._atom = self.states
        self.states += self._groups.pop()
        self._at += 1

    def _repeat(self) -> None:
        """Reads `*`, `+`, `?`, and the `?` that makes a count lazy."""
        self.out.append(self._source[self._at])
        self.states += 1
        self._at += 1

    def _count(self) -> None:
        found = _COUNT.match(self._source, self._at)
        if found is None:  # a plain brace, which ECMAScript allows
            self._emit(r"\{", 1)
            self._at += 1
            return
        least, comma, most = found.groups()
        if max(len(least), len(most or "")) > _MOST_DIGITS:
            raise UnjudgedError("a pattern with too many states")
        times = int(most or least) + (1 if comma and not most else 0)
        self.out.append(found.group())
        more = self._atom * max(times - 1, 0)
        self.states += more
        self._atom += more
        self._at = found.end()

    def _plain(self) -> None:
        """Reads a closing sign without an opening one."""
        self._emit("\\" + self._source[self._at], 1)
        self._at += 1

    def _escape(self) -> None:
        self._at += 1
        kind = self._source[self._at : self._at + 1]
        if kind in _ANCHORS:
            self._emit(_ANCHORS[kind], 1)
            self._at += 1
        elif found := _REFERENCE.match(self._source, self._at):
            self.regular = False
            number, name = found.groups()
            if int(number or 0) > self._captures or (name and name not in self._named):
                raise UnjudgedError("a reference to no group before it")
            self._emit(f"(?:\\{number or self._named[name]})", 1)  # the engine has no names here; digits may follow
            self._at = found.end()
        else:
            text, code, states = self._escaped()
            self._emit(text if code is not None else f"[{text}]", states)

    def _escaped(self) -> tuple[str, int | None, int]:
        """Reads what follows a backslash, within a class or not.

        Returns:
            Its text in a class, its code if it is one character, and its states.
        """
        source, at = self._source, self._at
        kind = source[at : at + 1]
        self._at += 1
        if kind in _CLASSES:
            return _CLASSES[kind], None, _CLASS_STATES[kind]
        if found := _PROPERTY.match(source, at):
            self._at = found.end()
            return "\\" + found.group(), None, _UNICODE_STATES
        if found := _HEX.match(source, at):
            self._at = found.end()
            return self._character(int(found.group(found.lastindex or 0), 16))
        if kind == "c" and source[at + 1 : at + 2].isalpha():
            self._at += 1
            return self._character(ord(source[at + 1]) % 32)
        if kind in _CONTROLS:
            return self._character(_CONTROLS[kind])
        if not kind or kind.isalnum():
            raise UnjudgedError("not a pattern")
        return self._character(ord(kind))

    def _character(self, code: int) -> tuple[str, int | None, int]:
        if code > _LAST:
            raise UnjudgedError("not a pattern")
        if code in _SURROGATES and code < 0xDC00 and (low := _LOW_HALF.match(self._source, self._at)):
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + int(low.group(1), 16) - 0xDC00
        return _NONE if code in _SURROGATES else _literal(code), code, _width(code)

    def _class(self) -> None:
        self._at += 1
        negated = self._source.startswith("^", self._at)
        self._at += negated
        items: list[str] = []
        states = 1
        while not self._source.startswith("]", self._at):
            text, more = self._item()
            items.append(text)
            states += more if more > 1 else 0  # what is ASCII has its states in common
        self._at += 1
        if not any(items):
            self._emit(_ANY if negated else _NONE, _WIDE_STATES)
            return
        self._emit(f"[{'^' * negated}{''.join(items)}]", states + _WIDE_STATES * negated)

    def _item(self) -> tuple[str, int]:
        """Reads a character, a range of them, or a class within a class; returns its text and its states."""
        text, first, states = self._member()
        if not self._source.startswith("-", self._at) or self._source.startswith("-]", self._at):
            return "" if first in _SURROGATES else text, states
        begin = self._at
        self._at += 1
        _, last, more = self._member()
        if first is None or last is None:
            self._at = begin + 1
            return ("" if first in _SURROGATES else text) + r"\-", states
        if last < first:
            raise UnjudgedError("not a pattern")
        first = _SURROGATES.stop if first in _SURROGATES else first
        last = _SURROGATES.start - 1 if last in _SURROGATES else last
        last = _LAST if last == 0xFFFF else last  # both halves of what is beyond
        return (f"{_literal(first)}-{_literal(last)}" if first <= last else ""), states + more

    def _member(self) -> tuple[str, int | None, int]:
        if self._at >= len(self._source):
            raise UnjudgedError("not a pattern")
        character = self._source[self._at]
        self._at += 1
        if character != "\\":
            return self._character(ord(character))
        if self._source.startswith("b", self._at):
            self._at += 1
            return self._character(8)
        return self._escaped()


def _literal(code: int) -> str:
    character = chr(code)
    return character if (character.isascii() and character.isalnum()) or character in "_ /" else f"\\x{{{code:X}}}"


def _between(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the ranges that some ranges leave out."""
    begin = 0
    for first, last in ranges:
        yield begin, first - 1
        begin = last + 1
    yield begin, _LAST


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(f"{_literal(first)}-{_literal(last)}" for first, last in ranges)


def _width(code: int) -> int:
    return 1 if code < 0x80 else _RANGE_STATES


_CLASSES = {
    **{name: _ranges(ranges) for name, ranges in _RANGES.items()},
    **{name.upper(): _ranges(_between(ranges)) for name, ranges in _RANGES.items()},
}
_READERS = {
    ".": _Reader._dot,
    "[": _Reader._class,
    "(": _Reader._group,
    ")": _Reader._end_group,
    "{": _Reader._count,
    "\\": _Reader._escape,
    **dict.fromkeys("*+?", _Reader._repeat),
    **dict.fromkeys("^$|", _Reader._sign),
    **dict.fromkeys("]}", _Reader._plain),
}
