"""Reads far ahead in a JSON document at the speed of C: much text at once, up to its last mark of structure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MOST_OPEN = 500  # brackets; no tool takes arguments as deep, and parsers give up at about 900
_MARKS = "[]{},:"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOOTH = re.compile(rb"([\[{]*)([\]}]*)")
_CLOSING = {"{": "}", "[": "]"}
# What stands before a state, in the innermost bracket: any document that leads to it will do.
_BEFORE = {
    ("", "value"): "", ("", "comma"): "0",
    ("[", "first_value"): "[", ("[", "value"): "[0,", ("[", "comma"): "[0",
    ("{", "first_key"): "{", ("{", "key"): '{"":0,', ("{", "colon"): '{""', ("{", "value"): '{"":',
    ("{", "comma"): '{"":0',
}  # fmt: skip
_AFTER = {"key": '"":0', "value": "0"}  # what a state must have before brackets can close
STATES = frozenset(state for _, state in _BEFORE)
_raw = msgspec.json.Decoder(msgspec.Raw)  # checks a document without building it


class DocumentPlace(NamedTuple):
    """A place in a document to which a mark of structure leads.

    Attributes:
        read: Characters up to there.
        open: Brackets that are open.
        state: What may follow: one of `STATES`, or `end`.
    """

    read: int
    open: list[str]
    state: str


def read_ahead(still_open: Sequence[str], state: str, text: str) -> DocumentPlace | None:
    """Reads on up to the last mark of structure in `text`, which is one outside of strings.

    Args:
        still_open: Brackets that are open before `text`.
        state: One of `STATES`.
        text: What follows.

    Returns:
        The place after that mark; None if no document goes on like that.
    """
    pieces = text.replace("\\\\", "  ").replace('\\"', "  ").split('"')  # one outside of strings, one inside, and so on
    read = _past_last_mark(pieces, len(text))
    if not read:
        return DocumentPlace(0, list(still_open), state) if read is not None else None
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
    return DocumentPlace(read, inner, after)


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
        if not len(closing) <= len(inner) <= MOST_OPEN:
            return None
        del inner[len(inner) - len(closing) :]
    return list(inner.decode())


def closing_brackets(still_open: Sequence[str]) -> str:
    """Returns the brackets that close those that are open."""
    return "".join(map(_CLOSING.__getitem__, reversed(still_open)))


def _state_after(mark: str, still_open: Sequence[str]) -> str:
    if mark in "]}":
        return "comma" if still_open else "end"
    if mark == ",":
        return "key" if still_open and still_open[-1] == "{" else "value"
    return {"[": "first_value", "{": "first_key", ":": "value"}[mark]
