"""Receives the body of one request: 413 if it is longer than allowed, 415 unless it is called JSON.

What the bodies of all requests may hold together is in `serve/http1/allowance.py`.
"""

import asyncio
from collections.abc import Mapping

from serve.errors import BodyTooLargeError, UnsupportedMediaTypeError
from serve.http1.asgi import Receive
from serve.http1.turns import PIECE_BYTES, beside

_JSON = "application/json"
_NOT_ENCODED = frozenset({"", "identity"})


async def read_body(receive: Receive, headers: Mapping[str, str], max_bytes: int) -> bytes:
    """Returns the whole body of a request that says its body is JSON.

    Raises:
        UnsupportedMediaTypeError: The body is not called JSON, or it is encoded.
        BodyTooLargeError: The body, or the length that the client announced, is over `max_bytes`.
        GatewayError: The listener gave up the body: it is malformed or too slow, or there is no room for it.
        CancelledError: The client left.
    """
    _check_media_type(headers)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise message.get("error") or asyncio.CancelledError
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return part if len(parts) == 1 else await beside(size > PIECE_BYTES, b"".join, parts)


def _check_media_type(headers: Mapping[str, str]) -> None:
    """Refuses a body of another type: a web page of any site can send those, but JSON only if we allow it."""
    given = headers.get("content-type")
    if given is None:
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            return  # no body; what is wrong about that, its reader says best
        raise UnsupportedMediaTypeError(
            "The request has no Content-Type. Add the header `Content-Type: application/json`."
        )
    if given != _JSON and given.partition(";")[0].strip().lower() != _JSON:
        raise UnsupportedMediaTypeError(
            f"Unsupported Media Type: only 'application/json' is allowed, not {given[:100]!r}. "
            "Send the header `Content-Type: application/json`."
        )
    coding = headers.get("content-encoding", "")
    if coding.strip().lower() not in _NOT_ENCODED:
        raise UnsupportedMediaTypeError(
            f"The Content-Encoding {coding[:100]!r} is not supported. Send the body uncompressed, without that header."
        )


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than the limit of {max_bytes} bytes.")
