"""Requests whose end two readers see at different places.

Each hides another request. What is expected: the hidden one reaches no engine, and the next client has its own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lab.scripted.arrival import chunked

_Lines = Callable[[int, int], str]
_WRAP = 2**64


class Hidden(NamedTuple):
    """A request in whose body another one is hidden, for a reader who sees its end elsewhere.

    Attributes:
        lines: Lines of its head, from the lengths of its body up to the hidden request and of both.
        framed: Its body, from what it means.
    """

    lines: _Lines
    framed: Callable[[bytes], bytes] = bytes


_ODD_LENGTHS: Mapping[str, _Lines] = {
    "two lengths": lambda part, all_: f"content-length: {all_}\r\ncontent-length: {part}",
    "two lengths, short one first": lambda part, all_: f"content-length: {part}\r\ncontent-length: {all_}",
    "a list": lambda part, all_: f"content-length: {part}, {all_}",
    "a plus": lambda part, _: f"content-length: +{part}",
    "a minus": lambda part, _: f"content-length: -{part}",
    "hexadecimal": lambda part, _: f"content-length: 0x{part:x}",
    "2^64 too much": lambda part, _: f"content-length: {_WRAP + part}",
    "a fraction": lambda part, _: f"content-length: {part}.0",
    "an underscore": lambda part, _: f"content-length: {str(part)[0]}_{str(part)[1:]}",
    "two numbers": lambda part, all_: f"content-length: {part} {all_}",
    "a vertical tab": lambda part, _: f"content-length: \x0b{part}",
    "a NUL": lambda part, _: f"content-length: {part}\0",
}

_ODD_CODINGS: Mapping[str, str] = {
    "chunked": "transfer-encoding: chunked",
    "capitals": "Transfer-Encoding: CHUNKED",
    "xchunked": "transfer-encoding: xchunked",
    "identity": "transfer-encoding: identity",
    "chunked twice": "transfer-encoding: chunked, chunked",
    "chunked before identity": "transfer-encoding: chunked, identity",
    "chunked before gzip": "transfer-encoding: chunked, gzip",
    "two lines": "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "quoted": 'transfer-encoding: "chunked"',
    "a parameter": "transfer-encoding: chunked;q=1",
    "an empty one": "transfer-encoding:\r\ntransfer-encoding: chunked",
    "a vertical tab": "transfer-encoding: \x0bchunked",
}

_ODD_LINES: Mapping[str, str] = {
    "a bare LF": "x-odd: y\ntransfer-encoding: chunked",
    "a bare CR": "x-odd: y\rtransfer-encoding: chunked",
    "a space before the colon": "transfer-encoding : chunked",
    "a tab before the colon": "transfer-encoding\t: chunked",
    "a fold": "x-odd: y\r\n transfer-encoding: chunked",
    "a folded value": "transfer-encoding:\r\n chunked",
    "a value cut by a fold": "transfer-encoding: chun\r\n ked",
    "a NUL in the name": "transfer-encoding\0: chunked",
    "a NUL in the value": "transfer-encoding: chunked\0",
    "a line without a colon": "x-odd\r\ntransfer-encoding: chunked",
    "a name that is empty": ": y\r\ntransfer-encoding: chunked",
}

_ODD_CHUNKS: Mapping[str, Callable[[bytes], bytes]] = {
    "2^64 too much": lambda data: b"%x\r\n%b\r\n0\r\n\r\n" % (_WRAP + len(data), data),
    "hexadecimal with 0x": lambda data: b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a plus": lambda data: b"+%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a minus": lambda data: b"-%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "words behind the size": lambda data: b"%x x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a bare LF behind the size": lambda data: b"%x\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a bare LF in an extension": lambda data: b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "no line end behind the data": lambda data: b"%x\r\n%b0\r\n\r\n" % (len(data), data),
    "a bare LF behind the data": lambda data: b"%x\r\n%b\n0\r\n\r\n" % (len(data), data),
    "no size": lambda data: b"\r\n%b\r\n0\r\n\r\n" % data,
}


def _chunked(data: bytes) -> bytes:
    return chunked(data) + b"0\r\n\r\n"


def _beside_length(line: str) -> Hidden:
    """Returns lines beside a length in which the hidden request is part of the body."""
    return Hidden(lambda _, all_: f"content-length: {all_}\r\n{line}", _chunked)


LENGTHS = {name: Hidden(lines) for name, lines in _ODD_LENGTHS.items()}
CODINGS = {name: _beside_length(line) for name, line in _ODD_CODINGS.items()}
LINES = {name: _beside_length(line) for name, line in _ODD_LINES.items()}
CHUNKS = {name: Hidden(lambda _, __: "transfer-encoding: chunked", framed) for name, framed in _ODD_CHUNKS.items()}
