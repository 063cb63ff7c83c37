"""The head of a request: whether it can be understood in one way only, and what ASGI is told of it."""

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools

from serve.errors import GatewayError, HeadTooLargeError, InvalidRequestError
from serve.http1.asgi import DIRECT, Scope
from serve.http1.wire import MAX_HEAD_BYTES

Headers = list[tuple[bytes, bytes]]


def refusal(version: str, method: str, url: bytes, headers: Headers) -> GatewayError | None:
    """Why a head is not accepted, if it isn't: two readers could take it for two different requests, or it is too long.

    llhttp itself refuses a length together with a coding, two lengths, and every syntax error.
    """
    if sum(len(name) + len(value) for name, value in headers) + len(url) > MAX_HEAD_BYTES:
        return HeadTooLargeError(f"The request's head is longer than {MAX_HEAD_BYTES} bytes.")
    if version not in ("1.0", "1.1"):
        return InvalidRequestError(f"HTTP/{version} is not spoken here; HTTP/1.1 is.")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    hosts = sum(name == b"host" for name, _ in headers)
    if method == "CONNECT":
        return InvalidRequestError("This is a gateway, not a proxy: CONNECT is not served.")
    if codings and (codings != [b"chunked"] or version != "1.1"):
        return InvalidRequestError("The only Transfer-Encoding that is understood is 'chunked', in HTTP/1.1.")
    if hosts > 1 or (not hosts and version == "1.1"):
        return InvalidRequestError("A request has one Host header.")
    return None


def scope_of(version: str, method: str, url: bytes, headers: Headers) -> Scope:
    """ASGI's description of a request, less the addresses."""
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
        "extensions": {DIRECT: {}},
    }


def addresses(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What ASGI is told of a connection."""
    return {
        "client": _address(transport.get_extra_info("peername")),
        "server": _address(transport.get_extra_info("sockname")),
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
    }


def _origin_form(url: bytes) -> bytes:
    """`/path?query` of a request target, which may be a whole URL."""
    parts = None if url.startswith(b"/") or b"://" not in url else httptools.parse_url(url)
    if parts is None:
        return url
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
