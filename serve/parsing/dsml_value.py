"""Turns the value of one DSML parameter into JSON, by its attribute `string` and by the tool's schema."""

from __future__ import annotations

import json
from json.encoder import encode_basestring

from serve.parsing.coercion import coerce, stated_types
from serve.parsing.inference import is_of
from serve.parsing.strict_json import loads
from serve.parsing.tools import Schema


class DsmlValue:
    """One value; `feed` and `finish` return JSON text to append to the arguments. All of the text is the value's.

    The schema has the first word: a string where only strings are allowed streams as it is, and `7` becomes 7 where no
    string is allowed, whatever the attribute says. Where both are allowed, or no schema speaks, the attribute decides.

    Args:
        schema: Of the parameter, if it is declared.
        root: The schema of all parameters, which `$ref` refers to.
        is_string: What the attribute says: text as it is, or JSON. None if it is missing.
    """

    def __init__(self, schema: Schema | None, root: Schema, is_string: bool | None) -> None:
        self._schema = schema
        self._root = root
        self._is_string = is_string
        self._types = stated_types(schema, root)
        allowed = not self._types or "string" in self._types
        self._streams = allowed if is_string else is_string is None and self._types == {"string"}
        self._opened = False
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        return ""

    def finish(self) -> str:
        """Ends the value at its closing tag."""
        if self._streams:
            return self._encode("") + '"'
        text = "".join(self._pieces)
        if self._is_json(text):
            return text.strip()
        return json.dumps(coerce(text, self._schema or {}, self._root) if self._types else text, ensure_ascii=False)

    def cut(self) -> str:
        """Ends the output inside the value; it stays an open string, which nobody takes for complete."""
        return self._encode("" if self._streams else "".join(self._pieces))

    def _is_json(self, text: str) -> bool:
        """Returns whether the text is the value as JSON writes it."""
        if self._is_string:
            return False
        try:
            return is_of(loads(text), self._types)
        except ValueError:
            return False

    def _encode(self, text: str) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        return opening + encode_basestring(text)[1:-1] if text else opening
