"""JSON as odd clients write it, made into JSON that every reader takes."""

import re
from collections.abc import Iterator
from itertools import islice

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A surrogate pair or half of one, or what looks like it: behind an odd number of backslashes an escape is just text.
_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_MOST_HALF_PAIRS = 10_000
_ESCAPE_BYTES = 6
_FEW_BYTES = 16
_BACKSLASH = ord("\\")
_WINDOW_BYTES = 64 * 1024  # searched at once: no other thread runs meanwhile


def mend(body: bytes) -> bytes:
    r"""Returns a body without a byte order mark, and with U+FFFD for each half of a surrogate pair (`\ud83d` alone).

    For bodies that do not decode: one that needs no mending comes back as the very same bytes.

    Args:
        body: What should be JSON in UTF-8.
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
        end = start + _WINDOW_BYTES
        for match in _SURROGATE.finditer(body, start, end + 2 * _ESCAPE_BYTES):
            if match.start() >= end:
                break
            place, second = match.start(), match.start("second")
            is_text = place > 0 and body[place - 1] == _BACKSLASH and is_escaped(body, place)
            if is_text == (second >= 0):
                yield second if is_text else place
            start = match.end()
        start = max(start, end)


def is_escaped(body: bytes, place: int) -> bool:
    """Returns whether a backslash or quote at a place is escaped by the backslashes before it."""
    size = _FEW_BYTES
    while True:
        before = body[max(0, place - size) : place]
        rest = before.rstrip(b"\\")
        if rest or size >= place:
            return (len(before) - len(rest)) % 2 == 1
        size *= _FEW_BYTES
