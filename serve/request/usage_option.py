"""The option of a stream by which an engine tells its usage in a last frame."""

import msgspec

from serve.request.completion import MALFORMED, NONE, CompletionRequest, with_member

_decoder: msgspec.json.Decoder[dict[str, object] | None] = msgspec.json.Decoder(dict[str, object] | None)


def leaves_usage_out(request: CompletionRequest) -> bool:
    """Returns True for a stream whose client does not want to be told of its usage."""
    if not request.stream:
        return False
    if request.stream_options is NONE:
        return True
    options = _stream_options(request)
    return options is not None and options.get("include_usage") is not True


def with_usage(body: bytes, request: CompletionRequest) -> bytes:
    """Returns the body of a stream with the request for usage in its last frame.

    Args:
        body: A JSON object with at least one member.
        request: The body, parsed, for which `leaves_usage_out` holds.
    """
    if request.stream_options is not NONE:
        options = {**(_stream_options(request) or {}), "include_usage": True}
        options.pop("continuous_usage_stats", None)
        return with_member(body, "stream_options", msgspec.json.encode(options))
    start = body.index(b"{") + 1
    return body[:start] + b'"stream_options":{"include_usage":true},' + body[start:]


def _stream_options(request: CompletionRequest) -> dict[str, object] | None:
    """Returns the options of a stream; None if they are not an object, which is for the engine to refuse."""
    try:
        return _decoder.decode(request.stream_options) or {}
    except MALFORMED:
        return None
