"""HTTP/1.1 as bytes: what the server and the client share."""

from collections.abc import Iterable

# More than any client sends, and little enough for a thousand connections at once.
MAX_HEAD_BYTES = 64 * 1024
# Buffered bytes of a message at which its sender is made to wait for its reader.
READ_AHEAD_BYTES = 256 * 1024
LAST_CHUNK = b"0\r\n\r\n"

RawHeaders = list[tuple[bytes, bytes]]


def encode_head(start_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the head of a request or response, including the empty line that ends it.

    Args:
        start_line: Request line or status line, without its line end.
        headers: Names and values.

    Raises:
        ValueError: A name or value holds a line break, which would add headers or even a message of its own.
    """
    lines = [start_line, *[b"%b: %b" % header for header in headers], b"", b""]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise ValueError("a header holds a line break")
    return head


def encode_chunk(data: bytes) -> bytes:
    """Returns one chunk of the chunked coding; `data` must not be empty, because an empty chunk ends the message."""
    return b"%x\r\n%b\r\n" % (len(data), data)
