"""Turns the text of one argument into JSON: strings stream, all else waits for its closing tag.

A class for each way in which a format tells the type. Blanks around the text that are markup are taken off here.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring

from serve.parsing.coercion import coerce, stated_types, types_of
from serve.parsing.inference import is_of
from serve.parsing.strict_json import loads
from serve.parsing.tools import Schema

_CONTAINERS = frozenset({"array", "object"})
_NO_NULL = 16  # a longer text is no spelling of null


class Value:
    """One value; `feed` and `finish` return JSON text to append to the arguments. All of the text is the value's.

    Subclasses say by what a format and a schema tell whether it streams.

    Args:
        schema: Of the parameter, if it is declared.
        root: The schema of all parameters, which `$ref` refers to.
    """

    _streams = False
    json_signs = ""
    """The signs with which the text may begin as JSON; none if it is the value as it is."""

    def __init__(self, schema: Schema | None, root: Schema) -> None:
        self._schema = schema
        self._root = root
        self._opened = False
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        return ""

    def finish(self) -> str:
        """Ends the value at its closing tag."""
        return self._encode("") + '"' if self._streams else self._whole("".join(self._pieces))

    def cut(self) -> str:
        """Ends the output inside the value; it stays an open string, which nobody takes for complete."""
        return self._encode("" if self._streams else "".join(self._pieces))

    def _whole(self, text: str) -> str:
        """Returns the JSON of a value that did not stream: what the schema makes of its text."""
        return json.dumps(coerce(text, self._schema or {}, self._root), ensure_ascii=False)

    def _encode(self, text: str) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        return opening + encode_basestring(text)[1:-1] if text else opening


class UntypedValue(Value):
    """A value of which only the schema tells the type. Unless it is verbatim, one newline after the opening tag and one
    before the closing tag are markup.
    """

    def __init__(self, schema: Schema | None, root: Schema, verbatim: bool = False) -> None:
        super().__init__(schema, root)
        types = types_of(schema, root)
        self._verbatim = verbatim
        self._streams = types == {"string"}
        self._nullable = types == {"string", "null"}
        if not types.isdisjoint(_CONTAINERS):
            self.json_signs = "{["
        self._first = True
        self._newlines = ""  # held back
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

    def finish(self, *, closed: bool = True) -> str:
        """Ends the value at its closing tag; if that is missing, at the newline that would stand behind it."""
        rest = self._newlines[:-1] if closed else ""
        if self._streams:
            return self._encode(rest) + '"'
        return self._whole("".join([*self._pieces, rest]))

    def cut(self) -> str:
        newlines = self._newlines
        self._newlines = ""
        return self._encode(newlines if self._streams else "".join(self._pieces) + newlines)

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


class DsmlValue(Value):
    """A value of DSML, whose attribute `string` tells whether it is text as it is, or JSON.

    The schema has the first word: a string where only strings are allowed streams as it is, and `7` becomes 7 where no
    string is allowed, whatever the attribute says. Where both are allowed, or no schema speaks, the attribute decides,
    if it is there.
    """

    def __init__(self, schema: Schema | None, root: Schema, is_string: bool | None) -> None:
        super().__init__(schema, root)
        self._is_string = is_string
        self._types = stated_types(schema, root)
        allowed = not self._types or "string" in self._types
        self._streams = allowed if is_string else is_string is None and self._types == {"string"}
        if not self._streams and not is_string:
            self.json_signs = '{["'
        elif not self._streams and not self._types.isdisjoint(_CONTAINERS):
            self.json_signs = "{["

    def _whole(self, text: str) -> str:
        if not self._is_string and self._is_json(text):
            return text.strip()
        return super()._whole(text) if self._types else json.dumps(text, ensure_ascii=False)

    def _is_json(self, text: str) -> bool:
        """Returns whether the text is the value as JSON writes it."""
        try:
            return is_of(loads(text), self._types)
        except ValueError:
            return False


class TypedValue(Value):
    """A value whose tag states its type: `string` for raw text, another JSON type for JSON; the schema decides if the
    tag states none.

    Attributes:
        fits: False once the value is known not to be of the type that the tag states.
    """

    def __init__(self, schema: Schema | None, root: Schema, kind: str | None) -> None:
        super().__init__(schema, root)
        self.fits = True
        self._kind = kind
        self._streams = kind == "string" or (kind is None and types_of(schema, root) == {"string"})

    def _whole(self, text: str) -> str:
        if self._kind is None:
            return super()._whole(text)
        try:
            value = loads(text)
        except ValueError:
            value = coerce(text, {"type": self._kind})  # a Python literal, or no value of this type
            self.fits = not isinstance(value, str)
            return json.dumps(value, ensure_ascii=False)
        self.fits = is_of(value, types_of({"type": self._kind}))
        return text.strip()  # as it was written: `1e2` and long numbers stay


class PaddedValue(TypedValue):
    """A value with one blank at each end that was put there when the output was decoded."""

    def __init__(self, schema: Schema | None, root: Schema, kind: str | None) -> None:
        super().__init__(schema, root, kind)
        self._begun = False
        self._blank = ""

    def feed(self, text: str) -> str:
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix(" ")
        text = self._blank + text
        self._blank = " " if text.endswith(" ") else ""
        return super().feed(text[:-1] if self._blank else text)

    def cut(self) -> str:
        blank, self._blank = self._blank, ""
        return self._encode(blank if self._streams else "".join(self._pieces) + blank)
