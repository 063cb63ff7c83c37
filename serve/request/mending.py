"""JSON as odd clients write it, made into JSON that every reader takes."""

import re

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Half a surrogate pair: clients cut strings in the middle of an emoji. What stands before the escape is looked at after
# it, so that the search begins with a literal; an escaped backslash before the letters `ud83d` is none.
_HALF_PAIR = re.compile(
    rb"\\u(?:(?<!\\\\u)|(?<=[^\\]\\\\\\u))"
    rb"(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MOST_HALF_PAIRS = 10_000


def mend(body: bytes) -> bytes:
    r"""Returns a body without a byte order mark, and with U+FFFD for each half of a surrogate pair (`\ud83d` alone).

    For bodies that do not decode: one that needs no mending comes back as the very same bytes.

    Args:
        body: What should be JSON in UTF-8.
    """
    body = body.removeprefix(_BYTE_ORDER_MARK)
    mended, count = _HALF_PAIR.subn(rb"\\ufffd", body, _MOST_HALF_PAIRS)
    return mended if count else body
