"""What goes over the wire: headers that pass, headers that don't, and the bytes of an SSE stream."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from serve.errors import GatewayError

Headers = Iterable[tuple[bytes, bytes]]
RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what the client library computes itself.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length", "expect", "accept-encoding"}
)  # fmt: skip
# The client's own secrets and whereabouts, our fields, and two headers by which a client could steer Ray Serve.
_PRIVATE = frozenset(
    {"authorization", "cookie", "forwarded", "via", "x-real-ip", "x-enable-speculative", "x-request-timeout-seconds",
     "x-request-disconnect-disabled", "x-api-key"}
)  # fmt: skip
_PRIVATE_PREFIXES = ("x-specgate-", "x-forwarded-")
_WITHHELD = _HOP_BY_HOP | _PRIVATE
_RESPONSE_DROPPED = _HOP_BY_HOP | {"server", "date", "set-cookie", "content-encoding", "x-request-id"}

DONE = b"data: [DONE]\n\n"
# At the start of a line: a line end inside JSON is always escaped. Other engines than vLLM end lines with CR LF or
# leave out the space, as SSE allows.
_ERROR = re.compile(rb'\ndata: ?\{"error"')
_DONE = re.compile(rb"\ndata: ?\[DONE\]\r?\n\r?\n")
_BLANK_LINE = re.compile(rb"\n\r?\n")


def request_headers(headers: Headers) -> dict[str, str]:
    """The client's headers by lower-case name; the last of several with one name counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def forwarded_headers(headers: Mapping[str, str], key: str | None) -> dict[str, str]:
    """What the engine gets to see: everything but hop-by-hop headers, secrets, addresses and our own fields.

    Args:
        headers: From `request_headers`.
        key: The engine's bearer token.
    """
    dropped = _WITHHELD
    if "connection" in headers:
        dropped |= {name.strip().lower() for name in headers["connection"].split(",")}
    kept = {
        name: value for name, value in headers.items() if name not in dropped and not name.startswith(_PRIVATE_PREFIXES)
    }
    kept["content-type"] = "application/json"  # whatever the client called it, it has been read as JSON
    if key is not None:
        kept["authorization"] = f"Bearer {key}"
    return kept


def answered_headers(headers: Mapping[str, str]) -> RawHeaders:
    """What the client gets of the engine's response headers."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _RESPONSE_DROPPED and not name.lower().startswith("x-specgate-")
    ]


def encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def error_frame(error: GatewayError) -> bytes:
    """The last frame of a stream that broke. No `[DONE]` follows: a client must be able to tell it from a whole one."""
    return b"data: " + encode_json(error.to_body()) + b"\n\n"


class StreamEnd:
    """Watches a relayed SSE stream, bytes in and bytes out, for how it ends.

    vLLM closes even a failed stream with `[DONE]`; whatever follows an error frame is withheld. The work is two
    substring searches a read, whatever the frames hold.

    Attributes:
        failed: An error frame went by.
        done: The stream ended as a whole one does.
        over: Never: read to its end, the connection can serve the next request.
    """

    over = False

    def __init__(self) -> None:
        self.failed = False
        self.done = False
        self._closed = False
        self._tail = b"\n\n"  # the end of what went by, for marks that two reads share

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent of `data`."""
        if self.failed:
            return self._rest_of_error(data)
        seen = self._tail + data
        error = _ERROR.search(seen) if b'{"error"' in seen else None
        if error is None:
            self._tail = seen[-32:]
            self.done = self.done or (b"[DONE]" in seen and _DONE.search(seen) is not None)
            return data
        cut = max(error.start() + 1 - len(self._tail), 0)
        self.failed, self._tail = True, b""
        return data[:cut] + self._rest_of_error(data[cut:])

    def _rest_of_error(self, data: bytes) -> bytes:
        if self._closed:
            return b""
        seen = self._tail + data
        end = _BLANK_LINE.search(seen)
        if end is None:
            self._tail = seen[-2:]
            return data
        self._closed = True
        return data[: end.end() - len(self._tail)]
