"""Parses requests with llhttp: a head that is ambiguous is rejected, any other becomes ASGI's scope."""

import asyncio
import enum
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

import httptools

from serve.errors import GatewayError, HeadTooLargeError, InvalidRequestError
from serve.http1.asgi import Scope
from serve.http1.message import MAX_HEAD_BYTES, RawHeaders

_NAME = itemgetter(0)  # of a header
_SINGLE = (b"authorization", b"x-api-key", b"content-type", b"content-encoding")
MAX_HEADERS = 256  # of a request; each takes far more memory than it has bytes, and nobody needs a key to send them


def reject_ambiguous(version: str, method: str, url: bytes, headers: RawHeaders) -> GatewayError | None:
    """Returns an error for a head that two readers could take for different requests, or that is too long.

    llhttp itself rejects a length together with a coding, two lengths, and every syntax error. `method` is in capitals,
    the headers' names are in lower case, and `url` is the request target as it was sent.
    """
    if len(url) + sum(map(len, chain.from_iterable(headers))) > MAX_HEAD_BYTES:
        return HeadTooLargeError(f"The request's head is longer than {MAX_HEAD_BYTES} bytes.")
    if len(headers) > MAX_HEADERS:
        return too_many_headers()
    if version not in ("1.0", "1.1"):
        return InvalidRequestError(f"HTTP/{version} is not supported; use HTTP/1.1.")
    if not url.isascii():  # proxies differ in what they make of it, and terminals obey some of it in a log
        return InvalidRequestError("The request's target holds bytes that must be percent-encoded.")
    if method == "CONNECT":
        return InvalidRequestError("CONNECT is not supported: this server is not a forward proxy.")
    names = [*map(_NAME, headers)]
    if b"transfer-encoding" in names:
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        if codings != [b"chunked"] or version != "1.1":
            return InvalidRequestError("The only supported Transfer-Encoding is 'chunked', in HTTP/1.1.")
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version == "1.1"):
        return InvalidRequestError("A request must have exactly one Host header.")
    if len({*names}) < len(names):
        return _reject_contradiction(headers)
    return None


def _reject_contradiction(headers: RawHeaders) -> GatewayError | None:
    """Returns an error for a head that says two things where only one counts: a proxy may have gone by the other."""
    for name in _SINGLE:
        if len({value for each, value in headers if each == name}) > 1:
            return InvalidRequestError(f"A request must not have two different {name.decode()} headers.")
    return None


def too_many_headers() -> GatewayError:
    return HeadTooLargeError(f"The request's head has more than {MAX_HEADERS} headers.")


def build_scope(version: str, method: str, url: bytes, headers: RawHeaders) -> Scope:
    """Returns ASGI's description of a request, without addresses and extensions.

    `path` stays as it was sent, where ASGI would decode it: a proxy before us that admits or refuses requests by their
    path must see the one by which they are routed. Arguments are as of `reject_ambiguous`.
    """
    path, _, query = (url if url.startswith(b"/") else _origin_form(url)).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method,
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
    }


def _asks_to_continue(headers: RawHeaders) -> bool:
    """Returns whether the client waits for a 100 Continue; several headers may say what it expects."""
    return b"100-continue" in [value.lower() for name, value in headers if name == b"expect"]


def addresses(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """Returns the part of a scope that is the same for all requests of a connection."""
    return {
        "client": _address(transport.get_extra_info("peername")),
        "server": _address(transport.get_extra_info("sockname")),
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
    }


def _origin_form(url: bytes) -> bytes:
    """Returns `/path?query` of a request target, which may be a whole URL."""
    parts = httptools.parse_url(url) if b"://" in url else None
    if parts is None:
        return url
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


_TRAILER_COST_BYTES = 32  # of each trailer beside its text, so that their number is bounded too


class Parsing(enum.Enum):
    """States of a parser, by what the next byte belongs to."""

    BETWEEN = enum.auto()  # a request that has not begun
    HEAD = enum.auto()
    BODY = enum.auto()
    REJECTED = enum.auto()  # unknown, because a request was not understood


# Bound once: in Python 3.11 `Parsing.HEAD` costs 0.1 us more than a global.
BETWEEN, HEAD, BODY, REJECTED = Parsing


class BodySink(Protocol):
    """Takes the body of a request."""

    def feed(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def fail(self, error: GatewayError) -> None: ...


class RequestParser:
    """Reads the requests of one connection, whatever the cuts between packets.

    Args:
        begin: Called with the scope when a head is complete, then whether the client waits for a 100 Continue and
            whether the connection may serve another request after this one. Returns what takes the body, or the error
            for which the request is rejected.

    Attributes:
        rejection: The error after which nothing more is read; None while all requests were understood.
    """

    def __init__(self, begin: Callable[[Scope, bool, bool], BodySink | GatewayError]) -> None:
        self.parsing = BETWEEN
        self.rejection: GatewayError | None = None
        self._begin = begin
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: RawHeaders = []
        self._moved = False  # in this call of `feed`: a request began, its head ended, or body has come
        self._unmoved_bytes = 0  # of a head, trailer, chunk extension or empty lines, since it last moved
        self._trailer_bytes = 0
        self._pieces: list[bytes] = []  # of the body, from this call of `feed`
        self._body: BodySink | None = None

    def feed(self, data: bytes) -> None:
        """Takes what has arrived; after a rejection it does nothing."""
        if self.parsing is REJECTED:
            return
        self._moved = False
        self._parse(data)
        if self._moved:
            self._unmoved_bytes = 0
            return
        self._unmoved_bytes += len(data)
        if self._unmoved_bytes > MAX_HEAD_BYTES:
            self._reject_long()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self.parsing is BODY:
                self._decline_upgrade(data[error.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(InvalidRequestError(f"This is not HTTP/1.1: {error}."))
        if self._pieces:
            self._deliver()
        if self.parsing is HEAD and len(self._headers) > MAX_HEADERS:  # more may come, and all would be kept
            self._reject(too_many_headers())

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1, as a server may: some clients offer HTTP/2 with every first request, body and all.

        httptools has stopped after the head. A new parser reads a head that frames the body in the same way; we are in
        BODY, so none of that head is collected, and what follows is the body of the request that we have.
        """
        self._parser = httptools.HttpRequestParser(self)
        framing = [b"%b: %b\r\n" % h for h in self._headers if h[0] in (b"content-length", b"transfer-encoding")]
        self._parse(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n" + rest)

    def _deliver(self) -> None:
        """Hands on what came of the body, at once: a read may hold 40,000 chunks of a byte."""
        pieces, self._pieces = self._pieces, []
        if self._body is not None:
            self._body.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _reject(self, error: GatewayError) -> None:
        """Reads nothing more, because nobody can tell where the next request begins."""
        self.parsing = REJECTED
        self.rejection = self.rejection or error
        if self._body is not None:  # its body will never be complete
            self._body.fail(self.rejection)
            self._body = None

    def _reject_long(self) -> None:
        what = "trailer" if self.parsing is BODY else "head"
        self._reject(HeadTooLargeError(f"The request's {what} is longer than {MAX_HEAD_BYTES} bytes."))

    # Called by httptools. A request begins BETWEEN two others, and its head is collected in HEAD. Anything that comes
    # in another state is a trailer, follows a rejected request, or repeats a head (see `_decline_upgrade`).

    def on_message_begin(self) -> None:
        if self.parsing is BETWEEN:
            self.parsing = HEAD
            self._moved = True
            self._url = b""
            self._headers = []
            self._trailer_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self.parsing is HEAD:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.parsing is HEAD:
            self._headers.append((name.lower(), value))
        elif self.parsing is BODY:
            self._trailer_bytes += len(name) + len(value) + _TRAILER_COST_BYTES
            if self._trailer_bytes > MAX_HEAD_BYTES:
                self._reject_long()

    def on_headers_complete(self) -> None:
        if self.parsing is not HEAD:
            return
        version = self._parser.get_http_version()
        method = self._parser.get_method().decode("latin-1")
        if error := reject_ambiguous(version, method, self._url, self._headers):
            self._reject(error)
            return
        scope = build_scope(version, method, self._url, self._headers)
        asks = b"expect" in dict(self._headers) and _asks_to_continue(self._headers)
        keeps = self._parser.should_keep_alive()
        body = self._begin(scope, asks and version == "1.1", keeps and version == "1.1")
        if isinstance(body, GatewayError):
            self._reject(body)
            return
        self.parsing = BODY
        self._moved = True
        self._body = body

    def on_body(self, body: bytes) -> None:
        if self.parsing is BODY and self._body is not None:
            self._moved = True
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.parsing is BODY and self._body is not None and not self._parser.should_upgrade():
            self.parsing = BETWEEN
            self._moved = True
            if self._pieces:
                self._deliver()
            self._body.finish()
            self._body = None
