"""Rewrites a request's body for an engine: the client's bytes, without the one field that is ours."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from serve.request.completion import PREFERENCE_FIELD, CompletionRequest

# Tells the engine's scheduler not to speculate for this request.
OPT_OUT = {"enable_speculative": 0}
# Tells our parsers inside the engine to report what they could not read, so that the guard sees it.
REPORT = {"specgate_violations": 1}

_OWN_FIELDS = frozenset({PREFERENCE_FIELD})
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
    """Returns a JSON object without the gateway's own fields; every other member's value stays as it was sent.

    Args:
        body: A JSON object that `serve.request.completion.parse` has accepted.
    """
    members = _decoder.decode(body)
    kept = {name: value for name, value in members.items() if name not in _OWN_FIELDS}
    return body if len(kept) == len(members) else msgspec.json.encode(kept)
