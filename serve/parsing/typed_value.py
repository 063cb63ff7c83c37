"""Turns a value whose tag states its type into JSON: strings stream, all else waits for its closing tag."""

from __future__ import annotations

import json
from json.encoder import encode_basestring

from serve.parsing.coercion import coerce, types_of
from serve.parsing.inference import is_of
from serve.parsing.strict_json import loads
from serve.parsing.tools import Schema


class TypedValue:
    """One value; `feed` and `finish` return JSON text to append to the arguments.

    Args:
        kind: The type that the tag states: `string` for raw text, another JSON type for JSON; the schema decides if
            the tag states none.
        schema: Of the parameter, if it is declared.
        root: The schema of all parameters, which `$ref` refers to.
        padded: One blank at each end was put there when the output was decoded.

    Attributes:
        fits: False once the value is known not to be of the type that the tag states.
    """

    def __init__(self, kind: str | None, schema: Schema | None, root: Schema, *, padded: bool = False) -> None:
        self.fits = True
        self._kind = kind
        self._schema = schema
        self._root = root
        self._streams = kind == "string" or (kind is None and types_of(schema, root) == {"string"})
        self._padded = padded
        self._begun = False
        self._blank = ""
        self._opened = False
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        if self._padded:
            text = self._unpadded(text)
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        return ""

    def finish(self) -> str:
        """Ends the value at its closing tag."""
        if self._streams:
            return self._encode("") + '"'
        text = "".join(self._pieces)
        if self._kind is None:
            return json.dumps(coerce(text, self._schema or {}, self._root), ensure_ascii=False)
        try:
            value = loads(text)
        except ValueError:
            value = coerce(text, {"type": self._kind})  # a Python literal, or no value of this type
            self.fits = not isinstance(value, str)
            return json.dumps(value, ensure_ascii=False)
        self.fits = is_of(value, types_of({"type": self._kind}))
        return text.strip()  # as it was written: `1e2` and long numbers stay

    def cut(self) -> str:
        """Ends the output inside the value; it stays an open string, which nobody takes for complete."""
        blank, self._blank = self._blank, ""
        return self._encode(blank if self._streams else "".join(self._pieces) + blank)

    def _unpadded(self, text: str) -> str:
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix(" ")
        text = self._blank + text
        self._blank = " " if text.endswith(" ") else ""
        return text[:-1] if self._blank else text

    def _encode(self, text: str) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        return opening + encode_basestring(text)[1:-1] if text else opening
