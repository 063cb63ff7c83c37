"""Server-sent events as bytes: a reader and a writer of frames."""

import gc
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serve.errors import EngineError, GatewayError
from serve.parsing.long_numbers import has_long_numbers

LF, _CR = b"\n\r"  # as numbers: to look for one of those takes a quarter of the time
_BLANK_LINE = b"\n\n"
_DONE_DATA = b"[DONE]"
DONE = b"data: " + _DONE_DATA + _BLANK_LINE
_LONG_BYTES = 256 * 1024
# Of objects and lists, of members, of values and of escapes. Texts may hold such marks too; log-probabilities of 20,000
# tokens are fewer, and so is all that a model says at once.
_MOST_MARKS = {b"{[": 500_000, b":": 500_000, b",": 600_000, b"\\": 1_000_000}
MAX_FRAME_BYTES = 1024 * 1024  # of a frame that must be read as a whole; a chunk of an answer has some hundred bytes

_BOM = b"\xef\xbb\xbf"

# Engines other than vLLM may leave out the space or end lines with CR LF or CR, as SSE allows.
# A CR that nothing follows yet may be the half of a CR LF.
FRAME_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r(?!\Z)|\n)")
FRAME_END_TAIL = slice(-3, None)  # one byte less than the longest frame end


def encode_frame(payload: Mapping[str, Any]) -> bytes:
    """Returns a JSON object as one frame."""
    return b"data: " + msgspec.json.encode(payload) + _BLANK_LINE


def encode_frames(payloads: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns several JSON objects, a frame each."""
    return b"".join(map(encode_frame, payloads))


def error_frame(error: GatewayError) -> bytes:
    """Returns the last frame of a stream that broke.

    No `[DONE]` may follow it: that is how a client tells a broken stream from a complete one.
    """
    return encode_frame(error.to_body())


class FrameReader:
    """Cuts a stream into frames, wherever the network cut it, in time that is linear in its bytes.

    Args:
        limit_bytes: Of a frame; a longer one is the engine's fault.

    Attributes:
        rest: What has arrived of a frame that is not complete.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._begun = False
        self.rest = bytearray()

    @property
    def pending_bytes(self) -> int:
        """The bytes that have arrived of a frame that is not complete."""
        return len(self.rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that are complete now, each with the blank line that ends it; CR LF and CR become LF.

        Raises:
            EngineError: A frame is too long.
        """
        if not self._begun:
            data = self._without_mark(data)
        if self.rest or _CR in data or len(data) > self._limit_bytes:
            return self._feed_cut(data)
        if data.find(LF) == len(data) - len(_BLANK_LINE) and data.endswith(_BLANK_LINE):
            return [data]  # exactly one frame of one line, as nearly always
        *frames, rest = data.split(_BLANK_LINE)
        self.rest += rest
        return [frame + _BLANK_LINE for frame in frames]

    def _without_mark(self, data: bytes) -> bytes:
        """Returns what a stream begins with but for a byte order mark; nothing while that may be cut."""
        start = bytes(self.rest) + data
        self._begun = len(start) >= len(_BOM) or not _BOM.startswith(start)
        self.rest = bytearray() if self._begun else bytearray(start)
        return start.removeprefix(_BOM) if self._begun else b""

    def _feed_cut(self, data: bytes) -> list[bytes]:
        """Does what `feed` does for any read: one within a frame, with CR LF, or longer than a frame may be."""
        rest = self.rest
        seen = rest[FRAME_END_TAIL] + data  # what came before holds no end of a frame, so nobody looks there again
        rest += data
        frames = self._cut() if FRAME_END.search(seen) else []
        if max(map(len, [*frames, self.rest])) > self._limit_bytes:
            raise EngineError(f"The engine sent an event of more than {self._limit_bytes} bytes.")
        return frames

    def _cut(self) -> list[bytes]:
        text = bytes(self.rest)
        if b"\r" in text:
            # A CR at the very end waits for its LF. JSON escapes line ends, so this changes no text.
            text, waiting = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + waiting
        *frames, rest = text.split(_BLANK_LINE)
        self.rest = bytearray(rest)
        return [frame + _BLANK_LINE for frame in frames]


def frame_data(frame: bytes) -> bytes | None:
    """Returns a frame's data; None if it has none, like the comments that keep a connection alive."""
    body = frame[: -len(_BLANK_LINE)]
    if body.startswith(b"data: ") and b"\n" not in body:
        return body[6:]
    lines = [line[5:].removeprefix(b" ") for line in body.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def is_comment(frame: bytes) -> bool:
    """Returns whether a frame holds comments and nothing else."""
    return all(line[:1] in (b":", b"") for line in frame.split(b"\n"))


def is_done(data: bytes) -> bool:
    """Returns True for the data of the frame that ends a complete stream."""
    return data == _DONE_DATA


def decode_chunk(data: bytes) -> dict[str, Any]:
    """Returns the JSON object that an engine sent, as a frame's data or as a whole body.

    Raises:
        EngineError: It is not JSON, or not an object, or one of more parts than any answer has.
    """
    try:
        chunk = msgspec.json.decode(data) if len(data) < _LONG_BYTES else _decode_long(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"The engine sent invalid JSON: {error}.") from error
    if not isinstance(chunk, dict):
        raise EngineError("The engine sent JSON that is not an object.")
    return chunk


def _decode_long(data: bytes) -> Any:
    for marks, most in _MOST_MARKS.items():
        if sum([data.count(mark) for mark in marks]) > most:
            raise EngineError(f"The engine sent JSON with more than {most} of the marks `{marks.decode()}`.")
    if has_long_numbers(data):
        raise EngineError("The engine sent JSON with too many numbers of hundreds of digits.")
    was_enabled = gc.isenabled()
    gc.disable()  # or it would look through all that is built, again and again
    try:
        return msgspec.json.decode(data)
    finally:
        if was_enabled:
            gc.enable()
