"""Options that the gateway adds to a request: no speculation, reports of violations, ids of tokens, and usage, which a
client that did not ask for it must not get.
"""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from serve.request.completion import MALFORMED, NONE, CompletionRequest
from serve.request.patch import BodyPatch

_decoder: msgspec.json.Decoder[dict[str, object] | None] = msgspec.json.Decoder(dict[str, object] | None)
_YES = frozenset({"true", "1", "1.0", "t", "y", "yes", "on"})  # as vLLM and SGLang read what should be a boolean
# Tells the engine's scheduler not to speculate for this request.
OPT_OUT = {"enable_speculative": 0}
# Tells our parsers inside the engine to report what they could not read, so that the guard sees it.
REPORT = {"specgate_violations": 1}


def add_xargs(patch: BodyPatch, request: CompletionRequest, xargs: Mapping[str, int]) -> None:
    """Adds our arguments to those in `vllm_xargs`. They win over the client's of the same name."""
    if request.vllm_xargs is UNSET:
        patch.add("vllm_xargs", msgspec.json.encode(xargs))
    else:
        patch.set("vllm_xargs", msgspec.json.encode({**(request.vllm_xargs or {}), **xargs}))


def wants_usage(request: CompletionRequest) -> bool:
    """Returns whether the answer is to tell its usage: a whole one always does, a stream if its client asks for it."""
    if not request.stream:
        return True
    if request.stream_options is NONE:
        return False
    options = _stream_options(request)
    return options is None or includes_usage(options)


def includes_usage(stream_options: object) -> bool:
    """Returns whether a stream's options ask for its usage. Without a word of it they do not, as in OpenAI's API."""
    asked = stream_options.get("include_usage") if isinstance(stream_options, dict) else None
    return str(asked).lower() in _YES


def ask_usage(patch: BodyPatch, request: CompletionRequest) -> None:
    """Asks for usage in the last frame of a stream. For a request of which `wants_usage` does not hold."""
    if request.stream_options is NONE:
        patch.add("stream_options", b'{"include_usage":true}')
        return
    options = {**(_stream_options(request) or {}), "include_usage": True}
    options.pop("continuous_usage_stats", None)
    patch.set("stream_options", msgspec.json.encode(options))


def ask_ids(patch: BodyPatch, request: CompletionRequest) -> None:
    """Asks for the ids of the tokens of prompt and answer. For a request that does not."""
    if request.return_token_ids is NONE:
        patch.add("return_token_ids", b"true")
    else:
        patch.set("return_token_ids", b"true")


def _stream_options(request: CompletionRequest) -> dict[str, object] | None:
    """Returns the options of a stream; None if they are not an object, which is for the engine to refuse."""
    try:
        return _decoder.decode(request.stream_options) or {}
    except MALFORMED:
        return None
