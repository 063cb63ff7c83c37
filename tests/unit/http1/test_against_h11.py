"""h11 as the oracle for requests: we accept one if and only if h11 does, with the same headers and the same body.

The exceptions are `STRICTER` and `LAXER`, each with its reason.
"""

import itertools
import re
from typing import Any

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve.http1.message import MAX_HEAD_BYTES
from serve.http1.request_parser import RequestParser

# Requests that h11 accepts and we reject, by a part of our message.
STRICTER = {
    "CONNECT is not supported": "we are not a forward proxy",
    "Invalid method": "llhttp knows the registered methods only",
    "Expected space after method": "the same, after a method that llhttp knows",
    "HTTP/2.0 is not supported": "h11 leaves the version to its user",
    "Invalid HTTP version": "the same",
    "Expected CRLF after version": "h11 takes a bare LF for a line end",
    "Missing expected CR after header value": "the same",
    "Invalid header field char": "the same, for the empty line after the head",
    "Unexpected whitespace after header value": "h11 joins folded lines, which RFC 9112 5.2 lets a server reject",
    "Invalid header value char": "h11 takes control characters",
    "Unexpected char in url schema": "h11 takes a target of any form",
    "Unexpected start char in url": "the same",
    "Invalid characters in url": "the same",
    "User callback error": "the same: a whole URL that is none",
    "Invalid character in Content-Length": "h11 takes the list `5, 5`, which RFC 9110 8.6 lets a server reject",
    "Duplicate Content-Length": "the same, as two headers",
    "Content-Length can't be present with Transfer-Encoding": "h11 lets the coding win; RFC 9112 6.3 warns of it",
    "Transfer-Encoding can't be present with Content-Length": "the same, the other way round",
    "The only supported Transfer-Encoding": "h11 takes a coding in HTTP/1.0; RFC 9112 6.1 calls its framing faulty",
    "Invalid character in chunk size": "h11 takes white space after a chunk's size",
    "Invalid character in chunk extensions": "h11 does not look into chunk extensions",
}
# Requests that h11 rejects and we accept, all by leave of RFC 9112 (2.2 and 3).
LAXER = {
    "empty lines before the request": re.compile(rb"[\r\n]"),
    "more than one space between the parts of the request line": re.compile(rb"[A-Z]+(?=.*  ) +[^ ]+ +HTTP/1.[01]\r\n"),
}

METHODS = [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"post", b"BREW", b"CONNECT", b"PO ST", b""]
TARGETS = [
    b"/", b"/v1/x?a=b", b"/%41/..//", b"*", b"http://gateway/v1", b"http://g;/v1", b"gateway:80", b"", b"/a b",
    b"/\x7f", b"/\xc3\xa9", b"/#a",
]  # fmt: skip
VERSIONS = [b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.10", b"HTTP/1", b""]
HEADERS = [
    b"Host: a", b"x: y", b"X:y", b"x:\ty \t", b"x:", b"x: a, b", b"x: \xe9", b"content-type: application/json",
    b"connection: close", b"connection: keep-alive, x", b"connection: upgrade", b"upgrade: h2c",
    b"expect: 100-continue", b"host: b", b"Content-Length: 5", b"content-length: 05", b"content-length: 5, 5",
    b"content-length: 6", b"content-length: +5", b"content-length: -5", b"content-length: 0x5", b"content-length:",
    b"content-length: 5 5", b"content-length: " + b"9" * 30, b"transfer-encoding: chunked",
    b"Transfer-Encoding: Chunked", b"transfer-encoding: chunked ", b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: chunked, chunked", b"transfer-encoding: identity", b"transfer-encoding:",
    b"transfer-encoding: \x0bchunked", b"x : y", b" x: y", b"x y: z", b": y", b"x", b"x: a\0b", b"x: a\rb",
    b"x: a\x7fb", b"x\xe9: y", b"(x): y", b"x: a\x01b",
]  # fmt: skip
BODIES = [
    b"hello", b"", b"hell", b"hello, world", b"5\r\nhello\r\n0\r\n\r\n",
    b"2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nt: 1\r\n\r\n", b"005\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n",
    b"5 \r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"x\r\nhello", b"5\r\nhello\r\n00\r\n\r\n",
    b"5;\r\nhello\r\n0\r\n\r\n", b"5;a=\"b\"\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nt : 1\r\n\r\n", b"5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\n", b"A\r\nhellohello\r\n0\r\n\r\n", b"fffffffffffffffff\r\nhello", b"5\rhello\r\n0\r\n\r\n",
]  # fmt: skip


Request = tuple[bytes, list[tuple[bytes, bytes]], bytes]


class Body:
    """Takes a request's body in place of a cycle."""

    def __init__(self) -> None:
        self.data = b""
        self.complete = False

    def feed(self, data: bytes) -> None:
        self.data += data

    def finish(self) -> None:
        self.complete = True

    def fail(self, _: Any) -> None: ...


def ours(parts: list[bytes]) -> tuple[Request | None, str]:
    """The first request as our parser reads it, or None and the message of its rejection."""
    begun: list[tuple[Any, Body]] = []

    def begin(scope: Any, expects_continue: bool, keep_alive: bool) -> Any:
        begun.append((scope, Body()))
        return begun[-1][1]

    parser = RequestParser(begin)
    for part in parts:
        parser.feed(part)
    if begun and begun[0][1].complete:
        scope, body = begun[0]
        return (scope["method"].encode(), normalized(scope["headers"]), body.data), ""
    return None, parser.rejection.message if parser.rejection else ""


def theirs(data: bytes) -> Request | None:
    """The first request as h11 reads it, or None if it rejects it or waits for more."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.receive_data(data)
    method, headers, body = b"", list[tuple[bytes, bytes]](), b""
    try:
        while True:
            match connection.next_event():
                case h11.Request() as request:
                    method, headers = request.method, normalized(request.headers)
                case h11.Data() as part:
                    body += bytes(part.data)
                case h11.EndOfMessage():
                    return method, headers, body
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None


def normalized(headers: Any) -> list[tuple[bytes, bytes]]:
    """Headers to compare: llhttp keeps white space after a value, and h11 lowers some values' case."""
    return [(bytes(name), bytes(value).strip(b" \t").lower()) for name, value in headers]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Requests, most of them with something wrong, some with a byte that does not belong there."""
    end = draw(st.sampled_from([b"\r\n"] * 9 + [b"\n"]))
    line = b" ".join(draw(st.sampled_from(choices)) for choices in ([b"POST"] * 20 + METHODS, TARGETS, VERSIONS))
    headers = draw(st.lists(st.sampled_from([b"Host: a", *HEADERS]), max_size=3))
    headers += draw(st.sampled_from([[b"Host: a"]] * 5 + [[]]))
    data = end.join([line, *headers, b"", draw(st.sampled_from(BODIES))])
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(data)))
        byte = draw(st.sampled_from([b"\0", b"\r", b"\n", b"\t", b" ", b":", b";", b",", b"a", b"0", b"\x7f", b"\xff"]))
        data = data[:place] + byte + data[place + draw(st.integers(0, 1)) :]
    return data


def _framed(body: bytes, chunks: list[int]) -> tuple[bytes, bytes]:
    """A framing header and the body in it: chunked if there are chunks."""
    if not chunks:
        return b"content-length: %d" % len(body), body
    parts = cut(body, chunks) if body else []
    return b"transfer-encoding: chunked", b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@given(
    st.sampled_from([b"POST", b"GET", b"PUT", b"OPTIONS"]),
    st.text("abcXYZ019-._~/%?=&", max_size=20),
    st.lists(
        st.tuples(st.from_regex(rb"\Ax-[a-z0-9!#$%&'*+.^_`|~-]{1,8}\Z"), st.from_regex(rb"\A([!-~\x80-\xff]{1,9})?\Z"))
    ),
    st.binary(max_size=60),
    st.lists(st.integers(1, 60), max_size=4),
    st.lists(st.integers(0, 400), max_size=6),
)
def test_a_well_formed_request_is_accepted_by_both_and_means_the_same(
    method: bytes, path: str, headers: list[tuple[bytes, bytes]], body: bytes, chunks: list[int], places: list[int]
) -> None:
    framing, framed = _framed(body, chunks)
    lines = [
        b"%b /%b HTTP/1.1" % (method, path.encode()),
        b"Host: a",
        *[b"%b: %b" % h for h in headers],
        framing,
        b"",
        b"",
    ]
    data = b"\r\n".join(lines) + framed
    request, _ = ours(cut(data, places))
    assert request is not None
    assert request == theirs(data)
    assert request[2] == body


@example(b"POST  /  HTTP/1.1\r\nHost: a\r\n\r\n", [])
@example(b"\r\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n", [])
@given(requests(), st.lists(st.integers(0, 400), max_size=3))
def test_any_request_is_accepted_if_and_only_if_h11_accepts_it_but_for_the_exceptions(
    data: bytes, places: list[int]
) -> None:
    request, message = ours(cut(data, places))
    oracle = theirs(data)
    if request is None and oracle is not None:
        assert any(part in message for part in STRICTER), message
    elif request is not None and oracle is None:
        assert any(pattern.match(data) for pattern in LAXER.values())
    else:
        assert request == oracle


@pytest.mark.parametrize("name", LAXER)
def test_an_exception_is_no_way_to_smuggle(name: str) -> None:
    """What we accept beyond h11 means the same as the request without it."""
    plain = b"POST /a HTTP/1.1\r\nHost: a\r\ncontent-length: 5\r\n\r\nhello"
    odd = {
        "empty lines before the request": b"\r\n\r\n" + plain,
        "more than one space between the parts of the request line": plain.replace(b" /a ", b"  /a  ", 1),
    }
    assert LAXER[name].match(odd[name])
    assert ours([odd[name]]) == ours([plain])
    assert theirs(plain) is not None
