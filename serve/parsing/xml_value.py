"""Turns the value of one XML parameter into JSON: strings stream, all else waits for its closing tag."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any

from serve.parsing.coercion import coerce, types_of
from serve.parsing.tools import Schema

_NO_NULL = 16  # a longer text is no spelling of null


class Value:
    """One value; `feed` and `finish` return JSON text to append to the arguments.

    Args:
        schema: Of the parameter, if it is declared.
        root: The schema of all parameters, which `$ref` refers to.
        verbatim: The value is all of the text; else one newline after the opening tag and one before the closing tag
            are markup.
    """

    def __init__(self, schema: Schema | None, root: Schema, verbatim: bool = False) -> None:
        types = types_of(schema, root)
        self._schema = schema
        self._root = root
        self._verbatim = verbatim
        self._streams = types == {"string"}
        self._nullable = types == {"string", "null"}
        self._opened = False
        self._first = True
        self._newlines = ""  # held back
        self._pieces: list[str] = []
        self._size = 0

    def feed(self, text: str) -> str:
        if not self._verbatim:
            text = self._without_markup(text)
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        self._size += len(text)
        if self._nullable and self._size > _NO_NULL:
            self._streams = True
            return self._encode("".join(self._pieces))
        return ""

    def _without_markup(self, text: str) -> str:
        """Takes the newline at the beginning away, and holds the last two back, which may be markup."""
        if self._first:
            self._first = False
            text = text.removeprefix("\n")
        if not self._newlines and not text.endswith("\n"):
            return text
        text = self._newlines + text
        size = max(len(text.rstrip("\n")), len(text) - 2)
        self._newlines = text[size:]
        return text[:size]

    def finish(self, *, closed: bool = True) -> str:
        """Ends the value at its closing tag; if that is missing, at the newline that would stand behind it."""
        rest = self._newlines[:-1] if closed else ""
        if self._streams:
            return self._encode(rest) + '"'
        value: Any = coerce("".join([*self._pieces, rest]), self._schema or {}, self._root)
        return json.dumps(value, ensure_ascii=False)

    def cut(self) -> str:
        """Ends the output inside the value; it stays an open string, which nobody takes for complete."""
        newlines = self._newlines
        self._newlines = ""
        text = newlines if self._streams else "".join(self._pieces) + newlines
        return self._encode(text)

    def _encode(self, text: str) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        return opening + encode_basestring(text)[1:-1] if text else opening
