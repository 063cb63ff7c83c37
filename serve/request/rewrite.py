"""The request body on its way to an engine: the client's bytes, less the one field that is ours."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from serve.request.completion import WISH_FIELD, Asked

OPT_OUT = {"enable_speculative": 0}
"""Tells the engine's scheduler not to speculate for this request."""
REPORT = {"specgate_violations": 1}
"""Tells our parsers inside the engine to send on what they could not read, so that the guard sees it."""


_OWN_FIELDS = frozenset({WISH_FIELD})
_decoder = msgspec.json.Decoder(dict[str, Raw])


def engine_body(body: bytes, asked: Asked, xargs: Mapping[str, int]) -> bytes:
    """What the engine gets: every value as the client sent it, except `enable_speculative`.

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
    """Returns a JSON object without the gateway's own fields; every other member's value stays as it was sent.

    Args:
        body: A JSON object that `serve.request.completion.read` has accepted.
    """
    members = _decoder.decode(body)
    kept = {name: value for name, value in members.items() if name not in _OWN_FIELDS}
    return body if len(kept) == len(members) else msgspec.json.encode(kept)
