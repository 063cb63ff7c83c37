"""The arguments of a call as Python writes them, which become JSON while they arrive."""

from __future__ import annotations

import json
import re

from serve.parsing.gemma4 import Arguments

_PARTS = re.compile(r"""[(){}\[\],:=]|'''|\"""|['"]|[^(){}\[\],:='"]+""")
_TEXT = re.compile(r"[^\\'\"]+")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_MAY_BE_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2})?")
_ESCAPES = dict(zip("ntrbfva\n\\'\"", "\n\t\r\b\f\v\a\0\\'\"", strict=True)) | {"\n": ""}
# What follows a quote that ends a string: in the call itself its next argument or its end, deeper a sign.
_BEHIND_ARGUMENT = re.compile(
    r"\s{0,64}(?:,\s{0,64}(?:[^\W\d]\w{0,256}\s{0,64}=|\))|\)\s{0,64}(?:[\];]|(?:,\s{0,64}|(?<=\n))[\w.]{1,256}\())"
)
_MAY_BE_BEHIND_ARGUMENT = re.compile(
    r"\s{0,64}(?:,\s{0,64}(?:[^\W\d]\w{0,256}\s{0,64})?|\)\s{0,64}(?:,\s{0,64})?[\w.]{0,256})?"
)
_BEHIND_VALUE = re.compile(r"\s{0,64}[,:\]})]")
_MAY_BE_BEHIND_VALUE = re.compile(r"\s{0,64}")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]{0,300}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_PREFIXES = frozenset("rRuUbBfF")


class Keywords(Arguments):
    """The arguments of a call as Python writes them, from their bracket on."""

    def __init__(self) -> None:
        super().__init__()
        self._quote = ""  # of the string at hand
        self._verbatim = False  # a backslash in it is one
        self._comma = False  # has come, but may be the last
        self._json: list[str] = []

    @property
    def in_string(self) -> bool:
        return self._quote != ""

    def read(self, text: str, *, final: bool = False) -> tuple[int, str]:
        """Returns how much of a text can be read, as more may follow unless it is final, and the JSON of that."""
        place = 0
        size = 1
        while size and place < len(text) and not self.ended and not self.endless:
            size = (self._read_string if self._quote else self._read_part)(text, place, final)
            place += size
        written = "".join(self._json)
        self._json = []
        return place, written

    def cut(self) -> str:
        """Returns the JSON of a value that the end of the output may have cut."""
        self._put(self.settle())
        return "".join(self._json)

    def _put(self, written: str) -> None:
        if written and self._comma:
            self._comma = False
            self._json.append(", ")
        self._json.append(written)

    def _read_part(self, text: str, place: int, final: bool) -> int:
        """Reads a sign, the quote of a string, or what stands between such."""
        match = _PARTS.match(text, place)
        assert match is not None  # the pattern matches any sign
        part = match.group()
        if part[0] in "'\"":
            if not final and text[place:] in (part, part * 2):
                return 0  # one of three, or an empty string
            self._begin_string(part)
            return len(part)
        if part not in "(){}[],:=":
            size = min(len(part), self._room)
            self.endless = size < len(part)
            self._room -= size
            self._bare.append(part[:size])
            return size
        self._put(self.settle())
        sign = self._sign(part)
        self._comma = sign == ", " or (self._comma and sign not in ("]", "}"))
        if sign != ", ":
            self._put(sign)
        return 1

    def _begin_string(self, quote: str) -> None:
        prefix = "".join(self._bare).strip()
        self._verbatim = prefix in ("r", "R")
        if prefix in _PREFIXES:
            self._bare = []
        if self.takes_string:
            self._quote = quote
            self._put('"')
        else:
            self.sound = False

    def _read_string(self, text: str, place: int, final: bool) -> int:
        if match := _TEXT.match(text, place):
            return self._write(match.group(), len(match.group()))
        if text[place] == "\\":
            return self._read_escape(text, place, final)
        if self._quote != text[place : place + len(self._quote)]:
            waits = not final and self._quote.startswith(text[place:])
            return 0 if waits else self._write(text[place], 1)
        if len(self._quote) == 1:
            in_call = len(self._open) == 1
            more = (_MAY_BE_BEHIND_ARGUMENT if in_call else _MAY_BE_BEHIND_VALUE).fullmatch(text, place + 1)
            if more and not final:
                return 0
            if not more and not (_BEHIND_ARGUMENT if in_call else _BEHIND_VALUE).match(text, place + 1):
                self.drifted = True  # it lacks its backslash
                return self._write(text[place], 1)
        size = len(self._quote)
        self._quote = ""
        self._put('"')
        self.end_string()
        return size

    def _read_escape(self, text: str, place: int, final: bool) -> int:
        if not final and _MAY_BE_ESCAPE.fullmatch(text, place):
            return 0
        match = _ESCAPE.match(text, place)
        if match is None:  # the last sign
            return self._write("\\", 1)
        raw = match.group()
        if self._verbatim:
            return self._write(raw[:2], 2)
        if len(raw) > 2 or raw[1] in "01234567":
            code = int(raw[1:], 8) if raw[1] in "01234567" else int(raw[2:], 16)
            text = chr(code) if code <= 0x10FFFF else raw
            self._put(json.dumps(text)[1:-1])  # in ASCII, as two may be the halves of one character
            return len(raw)
        return self._write(_ESCAPES.get(raw[1], raw), len(raw))

    def _write(self, text: str, size: int) -> int:
        self._put(json.dumps(text, ensure_ascii=False)[1:-1])
        return size

    def literal(self, text: str) -> str | None:
        if text in _WORDS:
            return _WORDS[text]
        plain = text.replace("_", "").lstrip("+")
        if _NUMBER.fullmatch(text) is None:
            return super().literal(text)
        if plain.lstrip("-").isdigit():
            return str(int(plain))
        return super().literal(plain) or json.dumps(float(plain))

    def _sign(self, sign: str) -> str:
        if sign in "([{":
            return super()._sign("{" if sign == "{" or not self._open else "[")
        if sign == ")":
            sign = "}" if len(self._open) == 1 else "]"
        if sign in "]}":
            if self._due == "colon":  # an argument without its name
                self.sound = False
            if self._due == "colon" or self._last == ",":
                self._due = "comma"
        return super()._sign(":" if sign == "=" else sign)
