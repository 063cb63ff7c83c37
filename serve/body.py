"""The request body on its way to an engine: the client's bytes, less the one field that is ours."""

from collections.abc import Mapping

import msgspec

from serve.features import strip_own_fields

OPT_OUT = {"enable_speculative": 0}
"""Tells the engine's scheduler not to speculate for this request."""
REPORT = {"specgate_violations": 1}
"""Tells our parsers inside the engine to send on what they could not read, so that the guard sees it."""


class _Xargs(msgspec.Struct):
    vllm_xargs: dict[str, msgspec.Raw] | None = None


_xargs = msgspec.json.Decoder(_Xargs)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def engine_body(body: bytes, *, own_fields: bool, xargs: Mapping[str, int]) -> bytes:
    """What the engine gets: every byte as the client sent it, except `enable_speculative`.

    Args:
        body: A JSON object; `serve.features.extract` has accepted it.
        own_fields: It holds a field of ours (`RequestFeatures.own_fields`); most don't, and looking again costs.
        xargs: What the engine is told in `vllm_xargs`; empty for most requests.
    """
    if own_fields:
        body = strip_own_fields(body)
    return _told(body, xargs) if xargs else body


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """A JSON object with one member replaced or added; every other member's value stays as it was sent."""
    return msgspec.json.encode(_members.decode(body) | {name: msgspec.Raw(value)})


def _told(body: bytes, xargs: Mapping[str, int]) -> bytes:
    theirs = _xargs.decode(body).vllm_xargs
    if theirs is None and b'"vllm_xargs"' not in body:
        start = body.index(b"{") + 1
        return body[:start] + b'"vllm_xargs":' + msgspec.json.encode(xargs) + b"," + body[start:]
    # The client uses vllm_xargs itself: rebuild the object.
    return with_member(body, "vllm_xargs", msgspec.json.encode({**(theirs or {}), **xargs}))
