"""The text of a request's prompt, for those who look up in it what an answer says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct
from stringzilla import Str, find

from serve.request.completion import MALFORMED, NONE

LONG_BYTES = 512 * 1024  # of a body, from where on looking something up takes too long for the event loop
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_JSON_BEGINS = frozenset('{["')
_UNESCAPED = re.compile(r"[\w .:@#%?=~,/-]*", re.ASCII)  # what every encoder of JSON writes as it is, but for strokes
_MOST_PLACES = 64  # of a name that stands in longer words only
CHARACTER_BYTES = 12  # at most, in JSON: `\\ud83d\\ude00`
_ESCAPE_BYTES = 6
_ENDS_FOLDER = re.compile(rb"[^\\][\w:]")  # ahead of a stroke, and not of `\\server` in another line
_ESCAPES = re.compile(rb"(\\+)(?:u([0-9a-fA-F]{4})|([nrtbf]))?")


class _Part(Struct, gc=False):
    text: str = ""


class _Function(Struct, gc=False):
    arguments: Raw = NONE


class _Call(Struct, gc=False):
    function: _Function | None = None


class _Message(Struct, gc=False):
    content: Raw = NONE
    tool_calls: list[_Call] | None = None


class _Body(Struct, gc=False):
    messages: list[_Message] | None = None


class Writing(NamedTuple):
    """Bytes in which names stand as they are written, and what is around them.

    Attributes:
        data: In UTF-8.
        is_json: Whether other characters may be escaped.
    """

    data: bytes
    is_json: bool

    def has(self, part: str) -> bool:
        """Returns whether something stands in it, if within a longer word."""
        return bool(find(self.data, part.encode(errors="replace")) >= 0)

    def has_uncased(self, part: str) -> bool:
        """Returns whether something stands in it in the usual capitals, if within a longer word."""
        return next(self.spellings_of(part), None) is not None

    def spellings_of(self, part: str) -> Iterator[str]:
        """Yields in which of the usual capitals something stands in it, if within a longer word."""
        end = part[1:].lower()  # of most of them
        has_end = self.has(end)
        yield from (each for each in in_capitals(part) if (has_end or not each.endswith(end)) and self.has(each))

    def has_within(self, part: str, since: int) -> bool:
        """Returns whether something stands behind a place in a string and is not all of it, as keys and roles are."""
        return self._stands(part, self._is_within, since)

    def says(self, name: str) -> bool:
        """Returns whether a name stands in it as it is written; False if JSON may hide it."""
        return self._stands(name, self._is_whole)

    def _stands(self, part: str, fits: Callable[[int, int], bool], since: int = 0) -> bool:
        """Returns whether something stands in it from a place to another that fit, as far as that matters."""
        sought = part.encode(errors="replace")
        at = find(self.data, sought, since)
        for _ in range(_MOST_PLACES):
            if at < 0:
                return False
            if fits(at, at + len(sought)):
                return True
            at = find(self.data, sought, at + 1)
        return False

    def _is_within(self, start: int, end: int) -> bool:
        """Returns whether what stands between two places is not all of a string."""
        before = self.data[start - 2 : start]
        return before[-1:] != b'"' or before[:1] == b"\\" or self.data[end : end + 1] != b'"'

    def _is_whole(self, start: int, end: int) -> bool:
        """Returns whether what stands between two places is not within a longer word."""
        if _goes_on(self.data[end : end + 1]):
            return False
        before = self.data[max(start - _ESCAPE_BYTES, 0) : start]
        if self.is_json and b"\\" in before:
            before = self.ahead_of(start, 1).encode(errors="replace")
        return not _goes_on(before[-1:])

    def ahead_of(self, at: int, length: int) -> str:
        """Returns the characters, so many at most, ahead of a place."""
        return self._text(self.data[max(at - self._reach(length), 0) : at])[-length:]

    def behind(self, at: int, length: int) -> str:
        """Returns the characters, so many at most, from a place on."""
        return self._text(self.data[at : at + self._reach(length)])[:length]

    def joined(self, start: int, end: int, signs: re.Pattern[bytes], longest: int) -> str:
        """Returns the part between two places with all signs on both sides of it; JSON escapes none of these signs.

        No more than `longest` bytes are looked at from either end of the part.
        """
        before, after = signs.match(self.data[max(end - longest, 0) : start][::-1]), signs.match(self.data, end)
        first = start - (before.end() if before else 0)
        if self.is_json and self.data[first - 1 : first] == b"\\":
            first += 5 if self.data[first : first + 1] == b"u" else 1
        last = min(after.end() if after else end, start + longest)
        return self.data[first:last].decode(errors="replace")

    @staticmethod
    def _reach(length: int) -> int:
        """Returns bytes that hold so many characters, if not all of them are escaped or far from ASCII."""
        return 2 * length + CHARACTER_BYTES

    def _text(self, part: bytes) -> str:
        if self.is_json and (strokes := part.count(b"\\")):
            lines = part.replace(b"\\n", b"\n")  # as nearly all escapes are
            part = lines if len(part) - len(lines) == strokes else _ESCAPES.sub(_unescaped, part)
        return part.decode(errors="replace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    """Returns what an escape stands for, however often JSON holds JSON: a line's end for any number of strokes."""
    strokes, code, control = found.groups()
    if code:
        return chr(int(code, 16)).encode(errors="replace")
    return b"\n" if control else strokes[: len(strokes) // 2]


class PromptText:
    """The prompt of one request, whose body is JSON, read no further than it has to be.

    Attributes:
        writing: The body, to look up names as JSON has them.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.writing = Writing(body, is_json=True)

    @property
    def is_long(self) -> bool:
        """True if looking something up in it may take longer than other requests should wait."""
        return len(self.body) >= LONG_BYTES

    @cached_property
    def text(self) -> Writing:
        """The text that `read` returns, to look up names that JSON may hide."""
        return Writing(self.read().encode(errors="replace"), is_json=False)

    @cached_property
    def in_strokes(self) -> PromptText:
        """The prompt with `/` for each backslash, whether or not JSON holds JSON, to look up paths of Windows."""
        parts = Str(self.body).split(4 * b"\\")
        body = b"/".join(parts)
        holds_json = any(_ENDS_FOLDER.fullmatch(bytes(part[-2:])) for part in parts[:-1])  # which ends lines
        if holds_json:
            body = _replaced(body, b"\\\\n", b"\\n")
        return PromptText(_replaced(body, b"\\\\", b"/"))

    def writing_of(self, name: str) -> Writing:
        """Returns what has every part of a name that the prompt's text has."""
        return self.writing if self.shows(name) else self.text

    def shows(self, name: str) -> bool:
        """Returns whether the body has a name as it is written wherever the prompt has it: JSON escapes none of it."""
        if "/" in name and self._escapes_strokes():
            return False
        if _UNESCAPED.fullmatch(name):
            return True
        return "\\" not in name and not any(find(self.body, escape) >= 0 for escape in _escapes_of(name))

    def _escapes_strokes(self) -> bool:
        """Returns whether the encoder puts a backslash before strokes, as PHP's does: always or never."""
        at = self.body.find(b"/")
        return at > 0 and self.body[at - 1 : at] == b"\\"

    def says(self, name: str) -> bool:
        """Returns whether the body has a name as it is written, in messages or tools; False if JSON may hide it."""
        return self.writing.says(name.replace("\\", "\\\\"))

    def read(self) -> str:
        """Returns the texts of the messages and of the calls in them; nothing of a body that has another shape."""
        try:
            messages = msgspec.json.decode(self.body, type=_Body).messages or ()
            return "\n".join(_texts(messages))
        except MALFORMED:
            return ""


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    return new.join(Str(data).split(old))  # `bytes.replace` takes ten times as long where there are few


def _escapes_of(name: str) -> set[bytes]:
    """Returns what any encoder of JSON may write for signs of a name; the first half of it for a pair of surrogates."""
    signs = {sign.encode("utf-16-be", "replace")[:2].hex() for sign in name if not _UNESCAPED.fullmatch(sign)}
    return {f"\\u{code}".encode() for sign in signs for code in (sign, sign.upper())}


def in_capitals(part: str) -> Iterable[str]:
    """Returns a part of a name in the usual capitals."""
    return dict.fromkeys((part, part.lower(), part.title(), part.capitalize(), part.upper()))  # the likely ones first


def _goes_on(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


def _texts(messages: Iterable[_Message]) -> Iterator[str]:
    for message in messages:
        yield from _text_of(message.content)
        for call in message.tool_calls or ():
            if call.function is not None:
                yield from _text_of(call.function.arguments)


def _text_of(content: Raw) -> Iterator[str]:
    kind = bytes(memoryview(content)[:1])
    if kind == b'"':
        yield _plain(msgspec.json.decode(content, type=str))
    elif kind == b"[":
        yield from (_plain(part.text) for part in msgspec.json.decode(content, type=list[_Part]))
    elif kind == b"{":  # arguments that are no text
        yield bytes(content).decode()


def _plain(text: str) -> str:
    """Returns a text without the escapes of JSON inside of it, if it is JSON itself, as results of tools may be."""
    if text[:1] not in _JSON_BEGINS:
        return text
    if "\\n" in text:
        text = text.replace("\\n", "\n")
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text
