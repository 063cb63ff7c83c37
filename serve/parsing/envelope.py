"""Reads the JSON object around a call as it comes: finds the name, and lets the arguments through as written."""

from __future__ import annotations

import json

from serve.parsing.jsonscan import Depth

_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class Envelope:
    """One object `{"name": …, "arguments": {…}}`, keys in any order.

    Attributes:
        name: The name, once read.
        opened: An arguments object has begun.
        keys: All keys of the object, in order.
        in_string: The text so far ends inside a string.
    """

    def __init__(self) -> None:
        self.name = ""
        self.opened = False
        self.keys: list[str] = []
        self._depth = 0
        self._key = ""
        self._in_value = False
        self._string: list[str] | None = None
        self._escaped = False
        self._arguments: Depth | None = None
        self._waiting: list[str] = []  # arguments that came before the name

    @property
    def in_string(self) -> bool:
        return self._arguments.inside if self._arguments else self._string is not None

    def feed(self, text: str) -> tuple[int, str]:
        """Read on.

        Returns:
            The place behind the object's end, or -1 if it has not come; and arguments to pass on. They come once the
            name is known.
        """
        passed: list[str] = []
        place = 0
        while place < len(text):
            if self._arguments is not None:
                place = self._inside(text, place, passed)
                continue
            if self._outside(text[place]):
                return place + 1, self._pass(passed)
            if self._arguments is None:
                place += 1
        return -1, self._pass(passed)

    def _pass(self, passed: list[str]) -> str:
        self._waiting += passed
        if not self.name or not self._waiting:
            return ""
        text = "".join(self._waiting)
        self._waiting = []
        return text

    def _inside(self, text: str, place: int, passed: list[str]) -> int:
        assert self._arguments is not None
        end = self._arguments.feed(text, place)
        if end >= 0:
            self._arguments = None
            self._key = ""
            self._in_value = False
        else:
            end = len(text)
        passed.append(text[place:end])
        return end

    def _outside(self, char: str) -> bool:
        """Read one character around the arguments; True if it ends the object."""
        if self._string is not None:
            self._in_string(char)
        elif char == '"':
            self._string = []
        elif char == "{" and self._depth == 1 and self._in_value and self._key in _ARGUMENTS and not self.opened:
            self._arguments = Depth()
            self.opened = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        elif self._depth == 1 and char == ":":
            self._in_value = True
        elif self._depth == 1 and char == ",":
            self._in_value = False
        return False

    def _in_string(self, char: str) -> None:
        assert self._string is not None
        if char == '"' and not self._escaped:
            self._end_string("".join(self._string))
            self._string = None
            return
        self._escaped = char == "\\" and not self._escaped
        self._string.append(char)

    def _end_string(self, raw: str) -> None:
        if self._depth != 1:
            return
        if not self._in_value:
            self._key = raw
            self.keys.append(raw)
        elif self._key == "name" and not self.name:
            try:
                self.name = json.loads(f'"{raw}"', strict=False)
            except ValueError:
                self.name = raw
