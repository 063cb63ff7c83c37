"""Rewrites a request's body for an engine: the client's bytes, with what we say to the engine."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from serve.request.completion import CompletionRequest

# Tells the engine's scheduler not to speculate for this request.
OPT_OUT = {"enable_speculative": 0}
# Tells our parsers inside the engine to report what they could not read, so that the guard sees it.
REPORT = {"specgate_violations": 1}

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
