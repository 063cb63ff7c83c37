"""JSON as odd clients write it, made into JSON that every reader takes."""

import re
from collections.abc import Iterator
from itertools import islice

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Half a surrogate pair: clients cut strings in the middle of an emoji. What stands before the escape is looked at after
# it, so that the search begins with a literal; an escaped backslash before the letters `ud83d` is none.
_HALF_PAIR = re.compile(
    rb"\\u(?:(?<!\\\\u)|(?<=[^\\]\\\\\\u))"
    rb"(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MOST_HALF_PAIRS = 10_000
_ESCAPE_BYTES = 6
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
    for start in range(0, len(body), _WINDOW_BYTES):
        end = start + _WINDOW_BYTES
        for match in _HALF_PAIR.finditer(body, start, end + 2 * _ESCAPE_BYTES):
            if match.start() < end:
                yield match.start()
