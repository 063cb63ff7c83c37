# ruff: noqa: E501 - tables
"""Bytes that are framed oddly, or another protocol.

What is expected: a status that is not 500, or the connection ends; and the next client has an answer.
"""

from __future__ import annotations

BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
_LINE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
_JSON = b"content-type: application/json\r\n"


def with_chunks(data: bytes) -> bytes:
    """Returns a chat request with a chunked body, its chunks as they are."""
    return _LINE + _JSON + b"transfer-encoding: chunked\r\n\r\n" + data


def _with(lines: bytes, body: bytes = BODY) -> bytes:
    return _LINE + _JSON + lines + b"\r\n" + body


_LENGTH = b"content-length: %d\r\n" % len(BODY)
_ONE = b"%x\r\n%b\r\n" % (len(BODY), BODY)
_GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"

RAW: dict[str, bytes] = {
    "chunk extensions": with_chunks(b'%x;a=b;c="d;e"\r\n%b\r\n0;x\r\n\r\n' % (len(BODY), BODY)),
    "a chunk extension of 1 MB": with_chunks(b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(BODY), b"a" * 2**20, BODY)),
    "a chunk extension with a quoted line end": with_chunks(b'%x;a="\r\n"\r\n%b\r\n0\r\n\r\n' % (len(BODY), BODY)),
    "a chunk size of zeros": with_chunks(b"0" * 100_000 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "a chunk size over 2^64": with_chunks(b"f" * 17 + b"\r\n" + BODY),
    "a negative chunk": with_chunks(b"-1\r\n" + BODY), "a chunk without CRLF": with_chunks(b"1\r\nxyz"),
    "chunks of one byte": with_chunks(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 200_000) + b"0\r\n\r\n"),
    "chunks of one byte, extensions": with_chunks(
        b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in BODY + b" " * 100_000) + b"0\r\n\r\n"),
    "M3 an endless trailer": with_chunks(_ONE + b"0\r\n" + b"a: b\r\n" * 500_000),
    "M3 a trailer line of 8 MB": with_chunks(_ONE + b"0\r\na: " + b"b" * 2**23),
    "a trailer named content-length": with_chunks(_ONE + b"0\r\ncontent-length: 5\r\n\r\n"),
    "a trailer named transfer-encoding": with_chunks(_ONE + b"0\r\ntransfer-encoding: chunked\r\n\r\n"),
    "M5 a malformed chunk": with_chunks(b"zz\r\n"), "M5 a malformed trailer": with_chunks(_ONE + b"0\r\n\0: x\r\n\r\n"),
    "CL and TE": _with(_LENGTH + b"transfer-encoding: chunked\r\n", _ONE + b"0\r\n\r\n"),
    "TE: chunked, gzip": _with(b"transfer-encoding: chunked, gzip\r\n", _ONE),
    "TE: gzip, chunked": _with(b"transfer-encoding: gzip, chunked\r\n", _ONE + b"0\r\n\r\n"),
    "TE folded": _with(b"transfer-encoding:\r\n chunked\r\n", _ONE + b"0\r\n\r\n"),
    "TE in HTTP/1.0": with_chunks(_ONE + b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "obs-fold": _with(b"x-a: b\r\n c\r\n" + _LENGTH), "bare LF": _with(_LENGTH).replace(b"\r\n", b"\n"),
    "bare CR": _with(b"x-a: b\rc\r\n" + _LENGTH), "NUL in a value": _with(b"x-a: b\0c\r\n" + _LENGTH),
    "obs-text in a value": _with(b"x-a: \xff\xfe\r\nx-request-id: \xff\r\n" + _LENGTH),
    "no colon": _with(b"x-a\r\n" + _LENGTH), "an empty name": _with(b": a\r\n" + _LENGTH),
    "two hosts": _with(b"host: y\r\n" + _LENGTH), "no host": _with(_LENGTH).replace(b"host: x\r\n", b""),
    "two lengths": _with(_LENGTH + b"content-length: 1\r\n"), "a length of +1": _with(b"content-length: +1\r\n"),
    "a length over 2^64": _with(b"content-length: 99999999999999999999\r\n"),
    "a length over 2^63": _with(b"content-length: 9223372036854775808\r\n"),
    "a length of spaces": _with(b"content-length:   \r\n"), "a length, Arabic": _with("content-length: ٣\r\n".encode()),
    "a length too long for us": _with(b"content-length: 99999999999\r\n"),
    "Expect": _with(b"expect: 100-continue\r\n" + _LENGTH), "Expect, other": _with(b"expect: 200-ok\r\n" + _LENGTH),
    "Expect twice": _with(b"expect: 100-continue\r\nexpect: 100-continue\r\n" + _LENGTH),
    "Expect, refused": _with(b"expect: 100-continue\r\ncontent-length: 99999999999\r\n", b""),
    "L3 upgrade to h2c": _with(b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
                               + _LENGTH),
    "L3 upgrade, xchunked": _with(b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: xchunked\r\n"),
    "upgrade to websocket": _GET.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                                         b"sec-websocket-key: eA==\r\nsec-websocket-version: 13\r\n\r\n"),
    "h2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
    "SSH": b"SSH-2.0-x\r\n", "PROXY": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + _GET,
    "PROXY v2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\0" * 12 + _GET, "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/1.0": _with(_LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0"), "HTTP/1.2": _GET.replace(b"1.1", b"1.2"),
    "HTTP/3.0": _GET.replace(b"1.1", b"3.0"), "HTTP/1.10": _GET.replace(b"1.1", b"1.10"),
    "http/1.1": _GET.replace(b"HTTP", b"http"), "ICE": _GET.replace(b"GET", b"SOURCE").replace(b"HTTP/1.1", b"ICE/1.0"),
    "absolute form": _with(_LENGTH).replace(b"POST /", b"POST http://x/"),
    "absolute form, another host": _with(_LENGTH).replace(b"POST /", b"POST http://evil:99999/"),
    "absolute form, userinfo": _with(_LENGTH).replace(b"POST /", b"POST http://a:b@x/"),
    "absolute form, no path": _GET.replace(b"GET /health", b"GET http://x"),
    "absolute form, bad port": _GET.replace(b"GET /health", b"GET http://x:y/health"),
    "absolute form, IPv6": _GET.replace(b"GET /health", b"GET http://[::1/health"),
    "authority form": _GET.replace(b"/health", b"x:80"), "asterisk form": _GET.replace(b"GET /health", b"OPTIONS *"),
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", "TRACE": _GET.replace(b"GET", b"TRACE"),
    "an unknown method": _GET.replace(b"GET", b"BREW"), "a method of 100 kB": b"A" * 100_000 + b" / HTTP/1.1\r\n\r\n",
    "QUERY": _with(_LENGTH).replace(b"POST", b"QUERY"), "HEAD": _GET.replace(b"GET", b"HEAD"),
    "HEAD of a POST route": _GET.replace(b"GET /health", b"HEAD /v1/chat/completions"),
    "a GET with a body": _with(_LENGTH).replace(b"POST /v1/chat/completions", b"GET /health"),
    "a path of 1 MB": _GET.replace(b"/health", b"/" + b"a" * 2**20), "a path, encoded": _GET.replace(b"/h", b"/%68"),
    "a path with NUL": _GET.replace(b"/health", b"/health%00"), "a path with a raw NUL": _GET.replace(b"/h", b"/\0h"),
    "a path of raw bytes": _GET.replace(b"/health", b"/\xff\xfe"), "a path of dots": _GET.replace(b"/health", b"/../health"),
    "a path with %": _GET.replace(b"/health", b"/v1/models/%zz%"), "a path with a fragment": _GET.replace(b"/h", b"/#h"),
    "a model's path with a slash": _GET.replace(b"/health", b"/v1/models/a/b%2Fc"),
    "a model's path of 30 kB": _GET.replace(b"/health", b"/v1/models/" + b"%20" * 10_000),
    "L10 an encoded operator route": _GET.replace(b"/health", b"/v1/%71uarantine"),
    "10,000 header lines": _with(b"a: b\r\n" * 10_000 + _LENGTH), "a header of 1 MB": _with(b"a: " + b"b" * 2**20),
    "40 kB of one header": _with(b"connection: " + b"a," * 15_000 + b"\r\n" + _LENGTH),
    "5,000 traceparents": _with(b"tracestate: a=b\r\n" * 1_500 + _LENGTH),
    "traceparent of rubbish": _with(b"traceparent: 00-\xff-\xfe-zz\r\ntracestate: ,,,=\r\nbaggage: %%%\r\n" + _LENGTH),
    "empty lines first": b"\r\n" * 1_000 + _with(_LENGTH), "1 MB of empty lines": b"\r\n" * 500_000 + _with(_LENGTH),
    "content types": _with(b"content-type: text/plain\r\n" + _LENGTH),
    "content type of parameters": _with(_LENGTH).replace(b"json\r\n", b"json;" + b"a=b;" * 3_000 + b"\r\n"),
    "gzip": _with(b"content-encoding: gzip\r\n" + _LENGTH), "range": _with(b"range: bytes=0-1\r\n" + _LENGTH),
    "connection: close, keep-alive": _with(b"connection: close, keep-alive\r\n" + _LENGTH),
    "connection: content-length": _with(b"connection: content-length, host\r\n" + _LENGTH),
    "method override": _with(b"x-http-method-override: DELETE\r\n" + _LENGTH),
    "a priority": _with(b"x-specgate-priority: \xff\r\n" + _LENGTH),
    "a preference": _with(b"x-enable-speculative: maybe\r\n" + _LENGTH),
    "L1 small heads in one read": _GET * 60, "L1 more heads than wait": _GET * 500,
    "M4 32 MB of small requests": _GET * 900_000,
    "chat, 60 at once": _with(_LENGTH) * 60, "a body, then rubbish": _with(_LENGTH) + b"rubbish\r\n\r\n",
    "a length too short": _with(b"content-length: 10\r\n"), "a length of 0": _with(b"content-length: 0\r\n", b""),
    "no length": _with(b""), "nothing": b"\r\n\r\n",
}  # fmt: skip
# Half a request is waited for; that is not silence.
HALF = frozenset({"a length of +1", "HTTP/0.9", "TLS", "M3 a trailer line of 8 MB", "nothing", "no length"})
