"""Rewrites a request's body for an engine: the client's bytes, without the one field that is ours."""

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from serve.errors import InvalidRequestError
from serve.request.completion import PREFERENCE_FIELD, CompletionRequest

# Tells the engine's scheduler not to speculate for this request.
OPT_OUT = {"enable_speculative": 0}
# Tells our parsers inside the engine to report what they could not read, so that the guard sees it.
REPORT = {"specgate_violations": 1}

_OWN_FIELDS = frozenset({PREFERENCE_FIELD})
# Strings are matched whole, so that nothing inside one is taken for structure.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)

_decoder = msgspec.json.Decoder(dict[str, Raw])


def with_xargs(body: bytes, request: CompletionRequest, xargs: Mapping[str, int]) -> bytes:
    """Returns the body with our arguments added to those in `vllm_xargs`.

    Args:
        body: A JSON object.
        request: The body, parsed.
        xargs: Arguments for the engine; they win over the client's of the same name.
    """
    if request.vllm_xargs is UNSET:
        start = body.index(b"{") + 1
        return body[:start] + b'"vllm_xargs":' + msgspec.json.encode(xargs) + b"," + body[start:]
    return with_member(body, "vllm_xargs", msgspec.json.encode({**(request.vllm_xargs or {}), **xargs}))


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """Returns a JSON object with one member replaced or added; the values of all others keep their bytes.

    Args:
        body: A JSON object.
        name: The member's name.
        value: Its value, as JSON.
    """
    return msgspec.json.encode(_decoder.decode(body) | {name: Raw(value)})


def strip_own_fields(body: bytes) -> bytes:
    """Returns a JSON object without the gateway's own fields, every other byte as it was.

    Args:
        body: A JSON object that `serve.request.completion.parse` has accepted.
    """
    start = body.index(b"{") + 1
    members, end = _members(body, start)
    kept = [body[a:b] for a, b in members if not _is_own(body, a, b)]
    return body if len(kept) == len(members) else body[:start] + b",".join(kept) + body[end:]


def _members(body: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """Returns the spans of an object's members between their commas, and the position of its closing brace."""
    spans: list[tuple[int, int]] = []
    depth = 1
    begin = start
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
