"""Reads the usage in an engine's response off its bytes; takes the frame out that the client did not ask for."""

import msgspec
from msgspec import Struct

from serve.limits.usage import Usage

# Within a JSON string the quotes would be escaped: text of a model can't imitate the members.
_NO_CHOICES = (b'"choices":[]', b'"choices": []')
_FRAME_ENDS = (b"\n\n", b"\r\n\r\n")
_MOST_WAITING_BYTES = 1024 * 1024
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


class AnswerMeter(Struct, eq=False, gc=False):
    """The usage of one attempt.

    Attributes:
        pool: That answers.
        speculative: With speculation.
        takes_out: The frame with the usage is not for the client.
        status: The response's; 0 until there is one.
        frames: Of a stream, so far.
        usage: What the engine has told; None if it has not.
    """

    pool: str
    speculative: bool
    takes_out: bool
    status: int = 0
    frames: int = 0
    usage: Usage | None = None
    _end: bytes = b""  # of a frame, as this engine writes it
    _waiting: bytes = b""

    def read(self, answer: bytes) -> None:
        """Reads the usage of a whole answer."""
        if self.status == _OK:
            self.usage = _usage_in(answer)

    def feed(self, data: bytes) -> bytes:
        """Returns what is for the client of a part of a stream: whole frames."""
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        if not self._end:
            self._end = _FRAME_ENDS[b"\r\n" in data] if b"\n" in data else b""
        if not self._end or not data.endswith(self._end):
            data = self._cut(data)
        self.frames += data.count(self._end or _FRAME_ENDS[0])
        if _NO_CHOICES[0] in data or _NO_CHOICES[1] in data:
            return self._without_usage(data)
        return data

    def finish(self) -> bytes:
        """Returns what is left when the stream is over."""
        rest, self._waiting = self._waiting, b""
        return self._without_usage(rest) if rest else rest

    def _cut(self, data: bytes) -> bytes:
        """Returns the frames that are complete; the beginning of the next one waits."""
        end = data.rfind(self._end) if self._end else -1
        cut = end + len(self._end) if end >= 0 else 0
        if len(data) - cut > _MOST_WAITING_BYTES:
            return data
        self._waiting = data[cut:]
        return data[:cut]

    def _without_usage(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        end = self._end or _FRAME_ENDS[0]
        for frame in data.split(end):
            has_none = _NO_CHOICES[0] in frame or _NO_CHOICES[1] in frame
            usage = _usage_in(frame[frame.find(b"data:") + 5 :]) if has_none else None
            if usage is not None:
                self.usage = usage
                if self.takes_out:
                    continue
            kept.append(frame)
        return end.join(kept)
