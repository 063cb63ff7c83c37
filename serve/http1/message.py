"""HTTP/1.1 messages as bytes, on the way out."""

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from time import time

from serve.errors import GatewayError

# More than any client sends, and little enough for a thousand connections at once.
MAX_HEAD_BYTES = 64 * 1024
STATUSES_WITHOUT_BODY = frozenset({204, 304})
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}

RawHeaders = list[tuple[bytes, bytes]]


def encode_head(start_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the head of a response, including the empty line that ends it.

    `start_line` is the status line, without its line end.

    Raises:
        ValueError: A name or value holds a line break, which would add headers or even a message of its own.
    """
    lines = [start_line, *map(b": ".join, headers), b"", b""]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise ValueError("a header holds a line break")
    return head


def error_response(error: GatewayError) -> bytes:
    """Returns a whole response to a request that no app gets to see; the connection ends with it."""
    body = error.to_json()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"date", http_date()),
    ]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in error.headers.items()]
    return encode_head(STATUS_LINES[error.status], headers) + body


_cached_date: tuple[int, bytes] = (0, b"")


def http_date() -> bytes:
    """Returns the value of the Date header, formatted once a second."""
    global _cached_date
    now = int(time())
    if _cached_date[0] != now:
        _cached_date = (now, formatdate(now, usegmt=True).encode())
    return _cached_date[1]
