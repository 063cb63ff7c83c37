"""Server-sent events as bytes: a reader of frames, a writer of frames, and a watcher of how a stream ends."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from serve.errors import EngineError, GatewayError

_BLANK_LINE = b"\n\n"
_DONE_DATA = b"[DONE]"
DONE = b"data: " + _DONE_DATA + _BLANK_LINE
MAX_FRAME_BYTES = 1024 * 1024  # of a frame that must be read as a whole; a chunk of an answer has some hundred bytes

# Engines other than vLLM may leave out the space or end lines with CR LF, as SSE allows.
_FRAME_END = re.compile(rb"\n\r?\n")
_FRAME_END_TAIL = slice(-2, None)  # one byte less than the longest frame end


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
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that are complete now, each with the blank line that ends it; CR LF becomes LF.

        Raises:
            EngineError: A frame is too long.
        """
        if self._rest or b"\r" in data or len(data) > self._limit_bytes:
            return self._feed_cut(data)
        if 0 <= data.find(_BLANK_LINE) == len(data) - len(_BLANK_LINE):
            return [data]  # exactly one frame, as nearly always
        *frames, rest = data.split(_BLANK_LINE)
        self._rest += rest
        return [frame + _BLANK_LINE for frame in frames]

    def _feed_cut(self, data: bytes) -> list[bytes]:
        """Does what `feed` does for any read: one within a frame, with CR LF, or longer than a frame may be."""
        rest = self._rest
        seen = rest[_FRAME_END_TAIL] + data  # what came before holds no end of a frame, so nobody looks there again
        rest += data
        frames = self._cut() if _FRAME_END.search(seen) else []
        if max(map(len, [*frames, self._rest])) > self._limit_bytes:
            raise EngineError(f"The engine sent an event of more than {self._limit_bytes} bytes.")
        return frames

    def _cut(self) -> list[bytes]:
        text = bytes(self._rest)
        if b"\r" in text:
            # A CR at the very end waits for its LF. JSON escapes line ends, so this changes no text.
            text, waiting = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
            text = text.replace(b"\r\n", b"\n") + waiting
        *frames, rest = text.split(_BLANK_LINE)
        self._rest = bytearray(rest)
        return [frame + _BLANK_LINE for frame in frames]


def frame_data(frame: bytes) -> bytes | None:
    """Returns a frame's data; None if it has none, like the comments that keep a connection alive."""
    body = frame[: -len(_BLANK_LINE)]
    if body.startswith(b"data: ") and b"\n" not in body:
        return body[6:]
    lines = [line[5:].removeprefix(b" ") for line in body.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def is_done(data: bytes) -> bool:
    """Returns True for the data of the frame that ends a complete stream."""
    return data == _DONE_DATA


def decode_chunk(data: bytes) -> dict[str, Any]:
    """Returns the JSON object that an engine sent, as a frame's data or as a whole body.

    Raises:
        EngineError: It is not JSON, or not an object.
    """
    try:
        chunk = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"The engine sent invalid JSON: {error}.") from error
    if not isinstance(chunk, dict):
        raise EngineError("The engine sent JSON that is not an object.")
    return chunk


class StreamState(Enum):
    """The progress of a relayed stream: before any error frame, within one, or after it."""

    OPEN = "open"
    IN_ERROR = "in_error"
    CLOSED = "closed"


_OPEN = StreamState.OPEN  # compared once a read, and an attribute of an enum is slow to look up

# Marks count at the start of a line only; text cannot forge them, because JSON escapes line ends.
# `"error": null` is no error, and a mark that the network cut before the value is completed by the next read.
_ERROR_MARK = re.compile(rb'(?<=\n)data: ?\{"error" ?: ?[^n ]')
_DONE_MARK = re.compile(rb"(?<=\n)data: ?\[DONE\]\r?\n\r?\n")
_MARK_TAIL = slice(-32, None)  # no less than the longest mark with the line end before it


class StreamEnd:
    """Watches a relayed stream for how it ends, and withholds what follows an error frame.

    vLLM sends `[DONE]` even after an error, which would make the stream look complete. The cost is two substring
    searches a read, whatever the frames hold.

    Attributes:
        state: `OPEN` until an error frame begins, `IN_ERROR` until it ends, then `CLOSED`.
        done: The stream ended as a complete one does.
        over: Always False: a stream is read to its end, so that the connection can serve the next request.
        slow: Always False: two searches take no time.
    """

    over = False
    slow = False

    def __init__(self) -> None:
        self.state = StreamState.OPEN
        self.done = False
        self._tail = b"\n\n"  # the last bytes of earlier reads, for marks that the network cut in two

    @property
    def failed(self) -> bool:
        """True once an error frame has begun."""
        return self.state is not _OPEN

    def feed(self, data: bytes) -> bytes:
        """Returns the part of `data` that may be sent."""
        if self.state is not _OPEN:
            return self._feed_error(data)
        seen = self._tail + data
        error = _ERROR_MARK.search(seen) if b'{"error"' in seen else None
        if error is not None:
            start = _offset_in_data(error.start(), self._tail)
            self.state = StreamState.IN_ERROR
            self._tail = b""
            return data[:start] + self._feed_error(data[start:])
        if b"[DONE]" in seen and _DONE_MARK.search(seen):
            self.done = True
        self._tail = seen[_MARK_TAIL]
        return data

    def _feed_error(self, data: bytes) -> bytes:
        """Returns what `data` holds of the error frame."""
        if self.state is StreamState.CLOSED:
            return b""
        seen = self._tail + data
        end = _FRAME_END.search(seen)
        if end is None:
            self._tail = seen[_FRAME_END_TAIL]
            return data
        self.state = StreamState.CLOSED
        return data[: _offset_in_data(end.end(), self._tail)]


def _offset_in_data(position: int, tail: bytes) -> int:
    r"""Translates a position in `tail + data` into one in `data`; what lies in the tail was sent earlier, so it is 0.

    With the tail `}\n\nda` (5 bytes) and the data `ta: {"error": ...`, the error frame begins at position 3 of the two
    together. Its first bytes are gone, so all of the data belongs to it: offset 0. Had it begun at position 9, offset
    4 of the data would be its first byte.
    """
    return max(position - len(tail), 0)
