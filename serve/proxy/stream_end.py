"""Watches how a relayed stream goes on and ends, without reading its frames."""

import re
from enum import Enum

from serve.http1.sse import FRAME_END, FRAME_END_TAIL, LF

NO_OPENING: tuple[bytes, ...] = ()  # nothing begins with it
_CHOICES = b'"choices":[{'


class StreamState(Enum):
    """The progress of a relayed stream: before any error frame, within one, or after it."""

    OPEN = "open"
    IN_ERROR = "in_error"
    CLOSED = "closed"


_OPEN = StreamState.OPEN  # compared once a read, and an attribute of an enum is slow to look up

# Marks count at the start of a line only; text cannot forge them, because JSON escapes line ends.
# `"error": null` is no error, and a mark that the network cut before the value is completed by the next read.
_ERROR_MARK = re.compile(rb'(?<=[\r\n])data: ?\{"error" ?: ?[^n ]')
_DONE_MARK = re.compile(rb"(?<=[\r\n])data: ?\[DONE\](?>\r\n|\r|\n){2}")
_DONE_CUT = re.compile(rb"(?<=[\r\n])data: ?\[DONE\](?>\r\n|\r|\n)?\Z")
_ENDED = re.compile(rb"(?>\r\n|\r|\n){2}\Z")
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
        # `rfind` is twice as fast as `in`, for bytes in which quotes and brackets abound.
        error = _ERROR_MARK.search(seen) if seen.rfind(b'{"error"') >= 0 else None
        if error is not None:
            start = _offset_in_data(error.start(), self._tail)
            self.state = StreamState.IN_ERROR
            self._tail = b""
            return data[:start] + self._feed_error(data[start:])
        if seen.rfind(b"[DONE]") >= 0 and _DONE_MARK.search(seen):
            self.done = True
        self._tail = seen[_MARK_TAIL]
        return data

    def finish(self) -> bytes:
        """Returns the blank line that the last frame lacks where the stream ends; empty if it lacks none.

        Some servers end with `[DONE]` and no line end. Of anything else, our error must not become a part.
        """
        if self.state is StreamState.CLOSED or _ENDED.search(self._tail):
            return b""
        self.done = self.done or (self.state is _OPEN and _DONE_CUT.search(self._tail) is not None)
        return b"\n\n"

    def _feed_error(self, data: bytes) -> bytes:
        """Returns what `data` holds of the error frame."""
        if self.state is StreamState.CLOSED:
            return b""
        seen = self._tail + data
        end = FRAME_END.search(seen)
        if end is None:
            self._tail = seen[FRAME_END_TAIL]
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


def chunk_opening(data: bytes) -> bytes | tuple[bytes, ...]:
    """Returns how the chunks of an answer begin, up to their first choice; `NO_OPENING` if a read is not one chunk.

    JSON escapes quotes and line ends, so that whatever begins with it and has one line is such a chunk, and neither an
    error nor a stream's end nor its usage.
    """
    if data.find(LF) != len(data) - 2 or data[-1] != LF or not data.startswith(b"data: {"):
        return NO_OPENING
    choices = data.find(_CHOICES)
    return data[: choices + len(_CHOICES)] if choices >= 0 else NO_OPENING
