"""The request body on its way to an engine: the client's bytes, less the one field that is ours."""

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from serve.errors import InvalidRequestError
from serve.request.completion import WISH_FIELD, Asked

OPT_OUT = {"enable_speculative": 0}
"""Tells the engine's scheduler not to speculate for this request."""
REPORT = {"specgate_violations": 1}
"""Tells our parsers inside the engine to send on what they could not read, so that the guard sees it."""


_OWN_FIELDS = frozenset({WISH_FIELD})
# Whole strings at a stride, so that nothing inside one is taken for structure.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)

_decoder = msgspec.json.Decoder(dict[str, Raw])


def engine_body(body: bytes, asked: Asked, xargs: Mapping[str, int]) -> bytes:
    """What the engine gets: every byte as the client sent it, except `enable_speculative`.

    Args:
        body: A JSON object.
        asked: What was read of it; most bodies need not be looked at again.
        xargs: What the engine is told in `vllm_xargs`; empty for most requests.
    """
    if asked.enable_speculative is not UNSET:
        body = strip_own_fields(body)
    if not xargs:
        return body
    if asked.vllm_xargs is UNSET:
        start = body.index(b"{") + 1
        return body[:start] + b'"vllm_xargs":' + msgspec.json.encode(xargs) + b"," + body[start:]
    return with_member(body, "vllm_xargs", msgspec.json.encode({**(asked.vllm_xargs or {}), **xargs}))


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """A JSON object with one member replaced or added; every other member's value stays as it was sent."""
    return msgspec.json.encode(_decoder.decode(body) | {name: Raw(value)})


def strip_own_fields(body: bytes) -> bytes:
    """Take the gateway's own fields out of a JSON object and leave every other byte as it is.

    Args:
        body: A JSON object that `serve.asked.read` has accepted.
    """
    start = body.index(b"{") + 1
    members, end = _members(body, start)
    kept = [body[a:b] for a, b in members if not _is_own(body, a, b)]
    return body if len(kept) == len(members) else body[:start] + b",".join(kept) + body[end:]


def _members(body: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """The spans of an object's members between their commas, and where the object's closing brace is."""
    spans: list[tuple[int, int]] = []
    depth, begin = 1, start
    for token in _TOKEN.finditer(body, start):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return [*spans, (begin, token.start())], token.start()
        elif mark == b"," and depth == 1:
            spans.append((begin, token.start()))
            begin = token.end()
    raise InvalidRequestError("The body is not valid JSON: the object does not end.", None, "invalid_json")


def _is_own(body: bytes, start: int, end: int) -> bool:
    key = _TOKEN.search(body, start, end)
    return key is not None and key[0][:1] == b'"' and msgspec.json.decode(key[0]) in _OWN_FIELDS
