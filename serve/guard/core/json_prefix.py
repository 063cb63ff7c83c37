"""Checks that text begins a JSON document: incremental, and linear in the text however it is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

# Between two tokens. Grammars allow any amount, and models that are lost in one write nothing else from there on
# (vllm-project/vllm#38696, #55313); whoever indents a document needs a few dozen.
MOST_SPACE = 512
STRUCTURE = re.compile('["\\\\\x00-\x1f]')  # of a string: what ends it, what is escaped, and what may not be in it
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
# Before Python 3.11.5 a group repeated with `*+` must not move ahead before it fails (python/cpython#106052): its
# alternatives are whole, `(?!)` keeps the compiler from reading what they begin with once for both.
_ESCAPES = re.compile(
    r'(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+|(?!)|\\u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][^"\\\x00-\x1f]*+)*+'
)
_MOST_OPEN = 500  # brackets; no tool takes arguments as deep, and parsers give up at about 900
_SPACES = " \t\n\r"
_AS_SPACE = str.maketrans(dict.fromkeys(_SPACES, " "))
_SPACE = re.compile(f"[{_SPACES}]*")
_DIGITS = re.compile(r"[0-9]*")
_IN_STRING = frozenset({"string", "escape", "hex"})
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"{": "}", "[": "]"}
_LITERALS = {"t": "true", "f": "false", "n": "null"}
# State of a number -> character class -> next state. `d` a digit but 0, `0`, `.`, `e` or `E`, `+` or `-`.
_NUMBER: dict[str, dict[str, str]] = {
    "sign": {"0": "zero", "d": "int"},
    "zero": {".": "point", "e": "exp"},
    "int": {"0": "int", "d": "int", ".": "point", "e": "exp"},
    "point": {"0": "frac", "d": "frac"},
    "frac": {"0": "frac", "d": "frac", "e": "exp"},
    "exp": {"0": "power", "d": "power", "+": "expsign", "-": "expsign"},
    "expsign": {"0": "power", "d": "power"},
    "power": {"0": "power", "d": "power"},
}
_DIGITS_FOLLOW = frozenset({"int", "frac", "power"})
_NUMBER_MAY_END = frozenset({"zero", "int", "frac", "power"})
_CLASS = {"0": "0", ".": ".", "e": "e", "E": "e", "+": "+", "-": "-"} | dict.fromkeys("123456789", "d")

# Reading ahead: much text at once at the speed of C, up to its last mark of structure.
_LONG = 128  # characters, from which on that pays
_MARKS = "[]{},:"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOOTH = re.compile(rb"([\[{]*)([\]}]*)")
# What stands before a state, in the innermost bracket: any document that leads to it will do.
_BEFORE = {
    ("", "value"): "", ("", "comma"): "0",
    ("[", "first_value"): "[", ("[", "value"): "[0,", ("[", "comma"): "[0",
    ("{", "first_key"): "{", ("{", "key"): '{"":0,', ("{", "colon"): '{""', ("{", "value"): '{"":',
    ("{", "comma"): '{"":0',
}  # fmt: skip
_AFTER = {"key": '"":0', "value": "0"}  # what a state must have before brackets can close
_STATES = frozenset(state for _, state in _BEFORE)
_raw = msgspec.json.Decoder(msgspec.Raw)  # checks a document without building it


class JsonPrefix:
    """Checks a document piece by piece.

    Args:
        begins: The signs of which one must be its first; empty if any value will do.
        lenient: True if strings may hold tabs and ends of lines as they are, which JSON wants escaped.

    Attributes:
        broken: True if no document begins with the text so far, or none that anybody would write.
        unescaped: True if a string holds a tab or an end of a line as it is.
        space: Characters of space at the end of the text so far, outside of strings.
    """

    _steps: ClassVar[Mapping[str, Callable[[Any, str, int], int]]]

    def __init_subclass__(cls) -> None:
        # Of the class: bound methods would keep each prefix until the collector finds it.
        cls._steps = {
            "first_sign": cls._first_sign, "value": cls._value, "first_value": cls._first_value,
            "first_key": cls._first_key,
            "key": cls._key, "colon": cls._colon, "comma": cls._comma, "string": cls._string, "escape": cls._escape,
            "hex": cls._hex, "literal": cls._literal, "number": cls._in_number, "end": cls._end,
        }  # fmt: skip

    def __init__(self, *, begins: str = "", lenient: bool = False) -> None:
        self.broken = False
        self.unescaped = False
        self.space = 0
        self._stack: list[str] = []
        self._begins = begins
        self._lenient = lenient
        self._state = "first_sign" if begins else "value"
        self._number = ""
        self._rest = ""
        self._after_string = "comma"

    @property
    def complete(self) -> bool:
        """True if the text so far is a whole document."""
        if self.broken:
            return False
        return self._state == "end" or (self._state == "number" and not self._stack and self._number in _NUMBER_MAY_END)

    @property
    def in_string(self) -> bool:
        """True if text without `STRUCTURE` changes nothing, since it belongs to a string."""
        return self._state == "string" and not self.broken

    def feed(self, text: str) -> None:
        """Reads on; does nothing more once the text is broken."""
        # Nearly always all of the text belongs to a string, which a pattern would take three times as long to see.
        if self._state == "string" and text.isprintable() and '"' not in text and "\\" not in text:
            return
        place = self._ahead(text) if len(text) > _LONG else 0
        while place < len(text) and not self.broken:
            place = self._steps[self._state](self, text, place)
        if text[-1:] in _SPACES and self._state not in _IN_STRING:
            self._count_space(text)
        else:
            self.space = 0

    def _count_space(self, text: str) -> None:
        said = len(text.rstrip(_SPACES))
        self.space = len(text) - said if said else self.space + len(text)
        if self.space > MOST_SPACE and not self.complete:
            self.broken = True

    def _ahead(self, text: str) -> int:
        """Reads up to the last mark of structure; returns the place after it."""
        place = 0
        while self._state not in _STATES:
            if place == len(text) or self.broken:
                return place
            place = self._steps[self._state](self, text, place)
        found = _read_ahead(self._stack, self._state, text[place:])
        if found is None and self._lenient:
            found = _read_ahead(self._stack, self._state, text[place:].translate(_AS_SPACE))
            self.unescaped = self.unescaped or found is not None
        if found is None:
            return self._fail(place)
        read, self._stack, self._state = found
        return place + read

    # Each step reads at `place` and returns the place after what it read; `_fail` stays where it is.

    def _fail(self, place: int) -> int:
        self.broken = True
        return place

    def _past(self, run: re.Pattern[str], text: str, place: int) -> int:
        match = run.match(text, place)
        assert match is not None  # the pattern matches the empty text
        return match.end()

    def _first_sign(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place == len(text):
            return place
        return self._value(text, place) if text[place] in self._begins else self._fail(place)

    def _value(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place == len(text):
            return place
        char = text[place]
        if char in "{[":
            if len(self._stack) == _MOST_OPEN:
                return self._fail(place)
            self._stack.append(char)
            self._state = "first_key" if char == "{" else "first_value"
        elif char == '"':
            self._state = "string"
            self._after_string = "comma"
        elif char in _LITERALS:
            self._state = "literal"
            self._rest = _LITERALS[char][1:]
        elif char == "-" or char.isdigit():
            return self._first_digit(char, place)
        else:
            return self._fail(place)
        return place + 1

    def _first_digit(self, char: str, place: int) -> int:
        start = {"-": "sign", "0": "zero"}.get(char, "int" if char in _CLASS else "")
        if not start:
            return self._fail(place)
        self._state = "number"
        self._number = start
        return place + 1

    def _first_value(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place < len(text) and text[place] == "]":
            return self._close(place)
        self._state = "value" if place < len(text) else "first_value"
        return place

    def _first_key(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place < len(text) and text[place] == "}":
            return self._close(place)
        self._state = "key" if place < len(text) else "first_key"
        return place

    def _key(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place == len(text):
            return place
        if text[place] != '"':
            return self._fail(place)
        self._state = "string"
        self._after_string = "colon"
        return place + 1

    def _colon(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        if place == len(text):
            return place
        if text[place] != ":":
            return self._fail(place)
        self._state = "value"
        return place + 1

    def _comma(self, text: str, place: int) -> int:
        """After a value: a comma, the end of what encloses it, or, outside everything, only space."""
        if not self._stack:
            self._state = "end"
            return place
        place = self._past(_SPACE, text, place)
        if place == len(text):
            return place
        inside = self._stack[-1]
        if text[place] == ",":
            self._state = "key" if inside == "{" else "value"
            return place + 1
        return self._close(place) if text[place] == _CLOSING[inside] else self._fail(place)

    def _close(self, place: int) -> int:
        self._stack.pop()
        self._state = "comma" if self._stack else "end"
        return place + 1

    def _string(self, text: str, place: int) -> int:
        match = _PLAIN.match(text, place)
        assert match is not None  # the pattern matches the empty text
        place = match.end()
        if place == len(text):
            return place
        if text[place] == '"':
            self._state = self._after_string if self._stack else "end"
        elif text[place] == "\\":
            if (end := self._past(_ESCAPES, text, place)) > place:
                return end
            self._state = "escape"
        elif self._lenient and text[place] in _SPACES:
            self.unescaped = True
        else:
            return self._fail(place)
        return place + 1

    def _escape(self, text: str, place: int) -> int:
        if text[place] == "u":
            self._state = "hex"
            self._rest = "...."
        elif text[place] in '"\\/bfnrt':
            self._state = "string"
        else:
            return self._fail(place)
        return place + 1

    def _hex(self, text: str, place: int) -> int:
        if text[place] not in _HEX:
            return self._fail(place)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = "string"
        return place + 1

    def _literal(self, text: str, place: int) -> int:
        if text[place] != self._rest[0]:
            return self._fail(place)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = "comma" if self._stack else "end"
        return place + 1

    def _in_number(self, text: str, place: int) -> int:
        following = _NUMBER[self._number].get(_CLASS.get(text[place], ""))
        if following is not None:
            self._number = following
            return self._past(_DIGITS, text, place + 1) if following in _DIGITS_FOLLOW else place + 1
        if self._number not in _NUMBER_MAY_END:
            return self._fail(place)
        self._state = "comma" if self._stack else "end"
        return place

    def _end(self, text: str, place: int) -> int:
        place = self._past(_SPACE, text, place)
        return place if place == len(text) else self._fail(place)


JsonPrefix.__init_subclass__()  # it is a class of its own, too


def _read_ahead(still_open: Sequence[str], state: str, text: str) -> tuple[int, list[str], str] | None:
    """Reads on up to the last mark of structure in `text`, which is one outside of strings.

    Returns:
        How many characters it read, the brackets that are open there and the state, one of `_STATES` or `end`; None if
            no document goes on like that.
    """
    pieces = text.replace("\\\\", "  ").replace('\\"', "  ").split('"')  # one outside of strings, one inside, and so on
    read = _past_last_mark(pieces, len(text))
    if not read:
        return (0, list(still_open), state) if read is not None else None
    inner = open_after(still_open, "".join(pieces[::2]))
    if inner is None:
        return None
    after = _state_after(text[read - 1], inner)
    top = still_open[-1] if still_open else ""
    outer = "".join("[" if bracket == "[" else '{"":' for bracket in still_open[:-1])
    document = "".join((outer, _BEFORE[top, state], text[:read], _AFTER.get(after, ""), closing_brackets(inner)))
    try:
        _raw.decode(document.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return read, inner, after


def _past_last_mark(pieces: Sequence[str], length: int) -> int | None:
    """Returns the place after the last mark, 0 if there is none, None if two strings have none between them."""
    for number in range(len(pieces) - 1, -1, -1):
        length -= len(pieces[number])
        if number % 2 == 0:
            last = max(map(pieces[number].rfind, _MARKS))
            if last >= 0:
                return length + last + 1
            if 0 < number < len(pieces) - 1:
                return None
        length -= 1
    return 0


def open_after(still_open: Sequence[str], outside: str) -> list[str] | None:
    """Returns the brackets that are open after text without strings; None if it closes more, or opens too many."""
    brackets = outside.encode("ascii", "replace").translate(None, _NOT_BRACKETS)
    while True:  # the empty ones at once, as long as there are many, and the others run by run
        fewer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(fewer) * 8 >= len(brackets) * 7:
            break
        brackets = fewer
    inner = bytearray("".join(still_open), "ascii")
    for opening, closing in _TOOTH.findall(fewer):
        inner += opening
        if not len(closing) <= len(inner) <= _MOST_OPEN:
            return None
        del inner[len(inner) - len(closing) :]
    return list(inner.decode())


def closing_brackets(still_open: Sequence[str]) -> str:
    return "".join(map(_CLOSING.__getitem__, reversed(still_open)))


def _state_after(mark: str, still_open: Sequence[str]) -> str:
    if mark in "]}":
        return "comma" if still_open else "end"
    if mark == ",":
        return "key" if still_open and still_open[-1] == "{" else "value"
    return {"[": "first_value", "{": "first_key", ":": "value"}[mark]
