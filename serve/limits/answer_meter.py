"""Reads the usage in an engine's response off its frames."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct

from serve.limits.usage import Usage
from serve.stream.frame import Frame
from serve.stream.line import Stage, count
from serve.stream.splice import KeptPrefix
from serve.stream.stages import NO_CHOICES, TokenIds

# Within a JSON string the quotes would be escaped: text of a model can't imitate the members.
_CHOICES = b'"choices"'
_USAGE = (b'"usage":{', b'"usage": {')
_OK = 200
_MOST = 10**9  # no answer has as many tokens


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class _Tokens(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(Struct, gc=False):
    usage: _Tokens | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def _tokens_in(data: bytes) -> _Tokens | None:
    """Returns the usage of a completion or a chunk as it is there; None if there is none."""
    try:
        return _decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _usage(tokens: _Tokens) -> Usage | None:
    """Returns the usage; None for numbers that can't be true: a remote engine may send anything."""
    prompt, written = tokens.prompt_tokens, tokens.completion_tokens or 0
    if prompt is None:
        return None
    details = tokens.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    if not (0 <= prompt < _MOST and 0 <= written < _MOST and cached >= 0):
        return None
    return Usage(prompt, cached if cached < prompt else prompt, written)


class Meter(Stage):
    """The usage of one attempt. The answer may go on with a part of an earlier one, which is `kept`, and which its
    usage holds too.

    Attributes:
        status: HTTP status of the response; 0 until there is one.
        lost: There will be none, and no engine is at work.
        chunks: Chunks of the stream so far, without the one that holds the usage alone.
        usage: The engine's figures; None as long as it has given none that can be true.
    """

    skim = staticmethod(count)

    def __init__(
        self, pool: str, speculative: bool, ids: TokenIds | None = None, kept: KeptPrefix | None = None
    ) -> None:
        self.pool = pool
        self.speculative = speculative
        self.status = 0
        self.lost = False
        self._ids = ids
        self._kept = kept
        self.chunks = 0
        self.usage: Usage | None = None
        self._latest: Frame | None = None

    @property
    def kept_tokens(self) -> int:
        """Those of an earlier answer in the usage of this one; its engine has read them, and not written them."""
        return 0 if self._kept is None else self._kept.tokens

    @property
    def so_far(self) -> Usage | None:
        """The engine's figures as of its newest chunk, if it tells them with every chunk; else by the tokens' ids."""
        data = None if self._latest is None else self._latest.data()
        tokens = None if data is None else _tokens_in(data)
        return self._counted() if tokens is None else _usage(tokens)

    def _counted(self) -> Usage | None:
        """Returns the usage of a stream so far by the ids of its tokens; None if they do not tell."""
        written = [] if self._ids is None else self._ids.written
        if self._kept is not None:
            kept = self._kept
            return Usage(kept.prompt_tokens, 0, kept.tokens + len(written)) if written or not self.chunks else None
        prompt = [] if self._ids is None else self._ids.prompt
        return Usage(len(prompt), 0, len(written)) if prompt else None

    def answered(self, status: int) -> None:
        """Notes the HTTP status of the response that has begun."""
        self.status = status

    def lose(self) -> None:
        """Notes that there will be no response."""
        self.lost = True

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Counts a chunk and reads its usage."""
        raw = frame.raw
        if frame.template is not None:
            self.chunks += 1
        elif NO_CHOICES[0] in raw or NO_CHOICES[1] in raw:
            if (data := frame.data()) is not None and (tokens := _tokens_in(data)) is not None:
                self.usage = _usage(tokens)
        elif _CHOICES in raw:
            self.chunks += 1
            if _USAGE[0] in raw or _USAGE[1] in raw:
                self._latest = frame
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Reads the usage of a whole answer, which stays as it is."""
        if self.status == _OK and (tokens := _tokens_in(body)) is not None:
            self.usage = _usage(tokens)
        return body


class NullMeter(Stage):
    """Measures nothing: whose attempt it is does not count."""

    usage: ClassVar[Usage | None] = None
    kept_tokens: ClassVar[int] = 0

    def answered(self, status: int) -> None:
        """Does nothing."""

    def lose(self) -> None:
        """Does nothing."""


NULL_METER = NullMeter()
AnyMeter = NullMeter | Meter
