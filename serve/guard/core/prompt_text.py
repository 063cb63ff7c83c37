"""The text of a request's prompt, for those who look up in it what an answer says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec
from msgspec import Raw, Struct
from stringzilla import find

from serve.request.completion import MALFORMED, NONE

LONG_BYTES = 512 * 1024  # of a body, from where on looking something up takes too long for the event loop
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_JSON_BEGINS = frozenset('{["')
_UNESCAPED = re.compile(r"[\w .:@#%?=~,/-]*", re.ASCII)  # what every encoder of JSON writes as it is, but for strokes
_MOST_PLACES = 64  # of a name that stands in longer words only


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


class PromptText:
    """The prompt of one request, read no further than it has to be.

    Args:
        body: Of the chat request, as JSON.

    Attributes:
        body: As given.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def is_long(self) -> bool:
        """True if looking something up in it may take longer than other requests should wait."""
        return len(self.body) >= LONG_BYTES

    def shows(self, name: str) -> bool:
        """Returns whether the body has a name as it is written wherever the prompt has it: JSON escapes none of it."""
        return _UNESCAPED.fullmatch(name) is not None and ("/" not in name or not self._escapes_strokes)

    @cached_property
    def _escapes_strokes(self) -> bool:
        """Whether the encoder puts a backslash before strokes, as PHP's does; one that does it does it always."""
        at = self.body.find(b"/")
        return at > 0 and self.body[at - 1 : at] == b"\\"

    def says(self, name: str) -> bool:
        """Returns whether the body has a name as it is written, in messages or tools; False if JSON may hide it."""
        body, sought = self.body, name.encode(errors="replace")
        at = find(body, sought)
        for _ in range(_MOST_PLACES):
            if at < 0:
                return False
            before, after = body[max(at - 2, 0) : at], body[at + len(sought) : at + len(sought) + 1]
            escaped = before[:1] == b"\\" and before[1:] in (b"n", b"r", b"t")
            if (escaped or not _goes_on(before[-1:])) and not _goes_on(after):
                return True
            at = find(body, sought, at + 1)
        return False

    def read(self) -> str:
        """Returns the texts of the messages and of the calls in them; nothing of a body that has another shape."""
        try:
            messages = msgspec.json.decode(self.body, type=_Body).messages or ()
            return "\n".join(_texts(messages))
        except MALFORMED:
            return ""


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
