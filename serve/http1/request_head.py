"""The head of a request: rejected if it is ambiguous, else described in ASGI's terms."""

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools

from serve.errors import GatewayError, HeadTooLargeError, InvalidRequestError
from serve.http1.asgi import Scope
from serve.http1.wire import MAX_HEAD_BYTES, RawHeaders


def reject_ambiguous(version: str, method: str, url: bytes, headers: RawHeaders) -> GatewayError | None:
    """Returns an error for a head that two readers could take for different requests, or that is too long.

    llhttp itself rejects a length together with a coding, two lengths, and every syntax error.

    Args:
        version: HTTP version, such as "1.1".
        method: In capitals.
        url: The request target as it was sent.
        headers: With lower-case names.
    """
    if sum(len(name) + len(value) for name, value in headers) + len(url) > MAX_HEAD_BYTES:
        return HeadTooLargeError(f"The request's head is longer than {MAX_HEAD_BYTES} bytes.")
    if version not in ("1.0", "1.1"):
        return InvalidRequestError(f"HTTP/{version} is not supported; use HTTP/1.1.")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    hosts = sum(name == b"host" for name, _ in headers)
    if method == "CONNECT":
        return InvalidRequestError("CONNECT is not supported: this server is not a forward proxy.")
    if codings and (codings != [b"chunked"] or version != "1.1"):
        return InvalidRequestError("The only supported Transfer-Encoding is 'chunked', in HTTP/1.1.")
    if hosts > 1 or (not hosts and version == "1.1"):
        return InvalidRequestError("A request must have exactly one Host header.")
    return None


def build_scope(version: str, method: str, url: bytes, headers: RawHeaders) -> Scope:
    """Returns ASGI's description of a request, without addresses and extensions.

    Args:
        version: HTTP version, such as "1.1".
        method: In capitals.
        url: The request target as it was sent.
        headers: With lower-case names.
    """
    path, _, query = _origin_form(url).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method,
        "path": unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
    }


def addresses(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """Returns the part of a scope that is the same for all requests of a connection."""
    return {
        "client": _address(transport.get_extra_info("peername")),
        "server": _address(transport.get_extra_info("sockname")),
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
    }


def _origin_form(url: bytes) -> bytes:
    """Returns `/path?query` of a request target, which may be a whole URL."""
    parts = None if url.startswith(b"/") or b"://" not in url else httptools.parse_url(url)
    if parts is None:
        return url
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
