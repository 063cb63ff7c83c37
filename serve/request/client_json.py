"""A client's JSON before it is decoded: what odd clients write is mended, what would take the decoder long is refused.

Bodies may be dense with tiny values, which would take the decoder, and everybody who waits for it, a second for each 4
MB. Text and numbers cost next to nothing, however many bytes they have. Objects and names cost a microsecond each, and
no conversation needs a million of them. So a large body that holds many marks of JSON is looked at once more, by a
decoder that stops at the first object too many. A body of many megabytes must be plain for the most part, as pictures
are: even what a decoder passes over holds up everybody if there are millions of it.
"""

import re
import string
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import msgspec
from msgspec import Raw, Struct

from serve.errors import InvalidRequestError
from serve.parsing.strict_json import has_long_numbers
from serve.request.long_json import MOST_AT_ONCE_BYTES, LongJson, is_escaped

# A smaller body can't hold enough to matter.
LARGE_BYTES = 64 * 1024
_FEW_MARKS = 20_000
_MOST_MARKS = 1_000_000  # about as many tokens; passing over more takes a decoder tens of milliseconds
_MOST_OBJECTS = 30_000
_MOST_NAMES = 2_000
# Spaces, quotes, commas, escapes: as many take a decoder 15 ms. Two million ids of tokens and five of prose have fewer.
_MOST_MARKED_BYTES = 4_000_000
_PLAIN = (string.ascii_letters + string.digits + "+/=-_.").encode() + bytes(range(0x80, 0x100))
_WINDOW_BYTES = 1024 * 1024  # looked at in one go
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A surrogate pair or half of one, or what looks like it: behind an odd number of backslashes an escape is just text.
_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_MOST_HALF_PAIRS = 10_000
_ESCAPE_BYTES = 6
_BACKSLASH = ord("\\")
_SEARCHED_BYTES = 64 * 1024  # at once: no other thread runs meanwhile


def mend(body: bytes) -> bytes:
    r"""Returns a body without a byte order mark, and with U+FFFD for each half of a surrogate pair (`\ud83d` alone).

    For bodies that do not decode: one that needs no mending comes back as the very same bytes.
    """
    body = body.removeprefix(_BYTE_ORDER_MARK)
    parts: list[bytes] = []
    end = 0
    for place in islice(_half_pairs(body), _MOST_HALF_PAIRS):
        parts += (body[end:place], rb"\ufffd")
        end = place + _ESCAPE_BYTES
    return b"".join((*parts, body[end:])) if parts else body


def _half_pairs(body: bytes) -> Iterator[int]:
    """Yields the places of halves alone: clients cut strings in the middle of an emoji."""
    start = 0
    while start < len(body):
        end = start + _SEARCHED_BYTES
        for match in _SURROGATE.finditer(body, start, end + 2 * _ESCAPE_BYTES):
            if match.start() >= end:
                break
            place, second = match.start(), match.start("second")
            is_text = place > 0 and body[place - 1] == _BACKSLASH and is_escaped(body, place)
            if is_text == (second >= 0):
                yield second if is_text else place
            start = match.end()
        start = max(start, end)


class _Counter(threading.local):
    """The values that a decoder may still read in one body; each thread decodes one at a time."""

    objects = 0
    names = 0


_counter = _Counter()


class _Name(str):
    """A name that counts."""

    __slots__ = ()


class _Object(Struct, gc=False):
    """An object that counts."""

    def __post_init__(self) -> None:
        _counter.objects -= 1
        if _counter.objects < 0:
            _refuse(f"{_MOST_OBJECTS} messages, parts, calls and tools")


class _Message(_Object, gc=False):
    content: str | list[_Object | str] | None = None
    tool_calls: list[_Object] | None = None


class _Allowed(_Object, gc=False):
    tools: list[_Object] | None = None


class _Choice(_Object, gc=False):
    allowed_tools: _Allowed | None = None


_Names = dict[_Name, Raw]


class _Outline(Struct, gc=False):
    """The fields whose values become objects when a request is decoded."""

    messages: list[_Message] | None = None
    tools: list[_Object] | None = None
    tool_choice: str | _Choice | None = None
    vllm_xargs: _Names | None = None
    chat_template_kwargs: _Names | None = None
    structured_outputs: _Names | None = None


def _count_name(_: type, name: Any) -> _Name:
    _counter.names -= 1
    if _counter.names < 0:
        _refuse(f"{_MOST_NAMES} names of fields")
    return _Name(name)


_outline = msgspec.json.Decoder(_Outline, dec_hook=_count_name)
_members = msgspec.json.Decoder(_Names, dec_hook=_count_name)


def check_density(body: bytes) -> None:
    """Refuses a large body with more objects or fields than any request has; does little for most.

    What else is wrong with what should be JSON is for its decoder to say.

    Raises:
        InvalidRequestError: The body holds too many objects or fields, or numbers of too many digits.
    """
    check_numbers(body)
    check_marks(body)
    windows = range(0, len(body), _WINDOW_BYTES)
    marks = sum([body.count(mark, start, start + _WINDOW_BYTES) for start in windows for mark in (b":", b"{")])
    if marks <= _FEW_MARKS:
        return
    if marks > _MOST_MARKS:
        _refuse(f"{_MOST_MARKS} objects and names")
    _counter.objects = _MOST_OBJECTS
    _counter.names = _MOST_NAMES
    try:
        left = LongJson(body).short if len(body) > MOST_AT_ONCE_BYTES else body
        _outline.decode(left)  # first, because it stops at an object, where the other would skip thousands
        _members.decode(left)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"The body has a wrong type: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def check_numbers(body: bytes) -> None:
    """Refuses a body with many numbers of hundreds of digits.

    Raises:
        InvalidRequestError: It has.
    """
    if has_long_numbers(body):
        raise InvalidRequestError("The body has too many numbers of hundreds of digits.", code="over_limit")


def check_marks(body: bytes) -> None:
    """Refuses a body of many megabytes that is not plain for the most part.

    Raises:
        InvalidRequestError: It is not.
    """
    if len(body) <= _MOST_MARKED_BYTES:
        return
    marked = 0
    for start in range(0, len(body), _WINDOW_BYTES):
        marked += len(body[start : start + _WINDOW_BYTES].translate(None, _PLAIN))
        if marked > _MOST_MARKED_BYTES:
            _refuse(f"{_MOST_MARKED_BYTES} spaces, quotes, commas, escapes and other marks")


def _refuse(what: str) -> NoReturn:
    raise InvalidRequestError(f"The body has more than {what}.", code="over_limit")
