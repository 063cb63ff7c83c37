"""The JSON object around a call: finds the name, and passes the arguments on as they were written."""

from __future__ import annotations

import json

from serve.parsing.json_scanner import JsonScanner

_ARGUMENTS = ("arguments", "parameters")


class Envelope:
    """One object `{"name": …, "arguments": {…}}`, keys in any order.

    Attributes:
        name: The name, once it is complete.
        opened: True once an arguments object has begun.
        keys: All keys of the object, in order.
    """

    def __init__(self) -> None:
        self.name = ""
        self.opened = False
        self.keys: list[str] = []
        self._scanner = JsonScanner()
        self._key = ""
        self._in_value = False
        self._in_arguments = False
        self._string: list[str] | None = None  # a key or a value of the object itself
        self._waiting: list[str] = []  # arguments that came before the name

    @property
    def in_string(self) -> bool:
        """True if the text so far ends inside a string."""
        return self._scanner.in_string

    def feed(self, text: str, place: int = 0) -> tuple[int, str]:
        """Reads on, from a place of the next piece. Returns the place after the object's end, or -1 if it has not come;
        and arguments to pass on, which come once the name is known.
        """
        while place < len(text):
            start = place
            place = self._scanner.feed(text, start, depth=1)
            ended = place >= 0
            if not ended:
                place = len(text)
            if self._in_arguments:
                self._waiting.append(text[start:place])
                if ended:
                    self._end_arguments()
            elif self._string is not None:
                self._string.append(text[start:place])
                if ended:
                    self._end_string("".join(self._string)[:-1])
            elif ended:
                self._sign(text[place - 1])
                if self._scanner.depth <= 0:
                    return place, self._ready()
        return -1, self._ready()

    def _ready(self) -> str:
        if not self.name or not self._waiting:
            return ""
        text = "".join(self._waiting)
        self._waiting = []
        return text

    def _sign(self, sign: str) -> None:
        """Takes a sign of the object itself, or a bracket of a value in it."""
        if sign == '"':
            self._string = []
        elif sign == "{" and self._in_value and self._key in _ARGUMENTS and not self.opened:
            self._in_arguments = True
            self.opened = True
            self._waiting.append(sign)
        elif sign == ":":
            self._in_value = True
        elif sign == ",":
            self._in_value = False

    def _end_arguments(self) -> None:
        self._in_arguments = False
        self._in_value = False
        self._key = ""

    def _end_string(self, raw: str) -> None:
        self._string = None
        if not self._in_value:
            self._key = raw
            self.keys.append(raw)
        elif self._key == "name" and not self.name:
            try:
                self.name = json.loads(f'"{raw}"', strict=False)
            except ValueError:
                self.name = raw
