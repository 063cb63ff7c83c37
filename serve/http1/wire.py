"""HTTP/1.1 as bytes: what the listener and the connections to engines share."""

from collections.abc import Iterable

# More than any client sends, and little enough that a thousand connections cost nothing to speak of.
MAX_HEAD_BYTES = 64 * 1024
# How much of a message may wait for its reader before the sender is made to wait.
READ_AHEAD_BYTES = 256 * 1024
LAST_CHUNK = b"0\r\n\r\n"

RawHeaders = Iterable[tuple[bytes, bytes]]


def head(start: bytes, headers: RawHeaders) -> bytes:
    """A request's or response's head, up to and with the empty line.

    Args:
        start: Request line or status line, without line end.
        headers: Names and values.

    Raises:
        ValueError: A name or value holds a line break: it would add headers, or a whole message, of its own.
    """
    lines = [start, *[b"%b: %b" % header for header in headers], b"", b""]
    made = b"\r\n".join(lines)
    if made.count(b"\n") != len(lines) - 1 or made.count(b"\r") != len(lines) - 1:
        raise ValueError("a header holds a line break")
    return made


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked coding; `data` is not empty, as an empty chunk ends the message."""
    return b"%x\r\n%b\r\n" % (len(data), data)
