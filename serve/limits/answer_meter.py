"""Reads the usage in an engine's response off its frames; takes the one out that the client did not ask for."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from serve.limits.usage import Usage
from serve.stream.frame import Frame
from serve.stream.line import Stage

# Within a JSON string the quotes would be escaped: text of a model can't imitate the members.
_NO_CHOICES = (b'"choices":[]', b'"choices": []')
_OK = 200


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class _Tokens(Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(Struct, gc=False):
    usage: _Tokens | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def _usage_in(data: bytes) -> Usage | None:
    """Returns the usage of a completion or a chunk; None if it has none, or is none."""
    try:
        tokens = _decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if tokens is None:
        return None
    details = tokens.prompt_tokens_details
    cached = 0 if details is None else min(details.cached_tokens or 0, tokens.prompt_tokens)
    return Usage(tokens.prompt_tokens, cached, tokens.completion_tokens or 0)


class Meter(Stage):
    """The usage of one attempt.

    Args:
        pool: Where it is answered.
        speculative: True if that pool speculates for it.
        takes_out: True if the frame with the usage is not for the client.

    Attributes:
        status: HTTP status of the response; 0 until there is one.
        frames: Frames of the stream so far.
        usage: The engine's figures; None as long as it has given none.
    """

    def __init__(self, pool: str, speculative: bool, takes_out: bool, status: int = 0) -> None:
        self.pool = pool
        self.speculative = speculative
        self.takes_out = takes_out
        self.status = status
        self.frames = 0
        self.usage: Usage | None = None

    def answered(self, status: int) -> None:
        """Notes the HTTP status of the response that has begun."""
        self.status = status

    def skim(self, data: bytes, frames: int) -> None:
        """Counts chunks that can't hold the usage."""
        self.frames += frames

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Counts a frame and reads its usage; returns nothing if it was for us alone."""
        self.frames += 1
        if frame.template is not None:
            return (frame,)
        raw = frame.raw
        if (_NO_CHOICES[0] in raw or _NO_CHOICES[1] in raw) and (data := frame.data()) is not None:
            usage = _usage_in(data)
            if usage is not None:
                self.usage = usage
                if self.takes_out:
                    return ()
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Reads the usage of a whole answer, which stays as it is."""
        if self.status == _OK:
            self.usage = _usage_in(body)
        return body
