"""SSE bytes to frames and back: what the guard reads of a stream, and what it writes."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serve.errors import EngineError, GatewayError

DONE = b"data: [DONE]\n\n"


# At the start of a line: a line end inside JSON is always escaped. Other engines than vLLM end lines with CR LF or
# leave out the space, as SSE allows.
_ERROR = re.compile(rb'\ndata: ?\{"error"')


_DONE = re.compile(rb"\ndata: ?\[DONE\]\r?\n\r?\n")


_BLANK_LINE = re.compile(rb"\n\r?\n")


def error_frame(error: GatewayError) -> bytes:
    """The last frame of a stream that broke. No `[DONE]` follows: a client must be able to tell it from a whole one."""
    return b"data: " + error.to_json() + b"\n\n"


class StreamEnd:
    """Watches a relayed SSE stream, bytes in and bytes out, for how it ends.

    vLLM closes even a failed stream with `[DONE]`; whatever follows an error frame is withheld. The work is two
    substring searches a read, whatever the frames hold.

    Attributes:
        failed: An error frame went by.
        done: The stream ended as a whole one does.
        over: Never: read to its end, the connection can serve the next request.
    """

    over = False

    def __init__(self) -> None:
        self.failed = False
        self.done = False
        self._closed = False
        self._tail = b"\n\n"  # the end of what went by, for marks that two reads share

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent of `data`."""
        if self.failed:
            return self._rest_of_error(data)
        seen = self._tail + data
        error = _ERROR.search(seen) if b'{"error"' in seen else None
        if error is None:
            self._tail = seen[-32:]
            self.done = self.done or (b"[DONE]" in seen and _DONE.search(seen) is not None)
            return data
        cut = max(error.start() + 1 - len(self._tail), 0)
        self.failed, self._tail = True, b""
        return data[:cut] + self._rest_of_error(data[cut:])

    def _rest_of_error(self, data: bytes) -> bytes:
        if self._closed:
            return b""
        seen = self._tail + data
        end = _BLANK_LINE.search(seen)
        if end is None:
            self._tail = seen[-2:]
            return data
        self._closed = True
        return data[: end.end() - len(self._tail)]


_DONE_DATA = b"[DONE]"


_END = b"\n\n"


class FrameReader:
    """Cuts a stream's bytes into frames, however they arrive."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now, each with the blank line that ends it."""
        text = self._rest + data if self._rest else data
        if 0 <= text.find(_END) == len(text) - len(_END) and b"\r" not in text:  # one frame, as nearly always
            self._rest = b""
            return [text]
        if b"\r" in text:
            text, held = (text[:-1], text[-1:]) if text.endswith(b"\r") else (text, b"")
            text = text.replace(b"\r\n", b"\n") + held  # JSON text holds no bare line ends
        *frames, self._rest = text.split(_END)
        return [frame + _END for frame in frames]


def data_of(frame: bytes) -> bytes | None:
    """A frame's data; None if it has none, as a comment that keeps the connection alive."""
    body = frame[: -len(_END)]
    if body.startswith(b"data: ") and b"\n" not in body:
        return body[6:]
    lines = [line[5:].removeprefix(b" ") for line in body.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def ends(data: bytes) -> bool:
    """Whether this is the data of the last frame of a stream that is whole."""
    return data == _DONE_DATA


def chunk_of(data: bytes) -> dict[str, Any]:
    """A frame's data as a chunk.

    Raises:
        EngineError: It is not the JSON of one.
    """
    try:
        chunk = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"The engine sent a frame that is not JSON: {error}.") from error
    if not isinstance(chunk, dict):
        raise EngineError("The engine sent a frame that is not an object.")
    return chunk


def frame_of(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a frame."""
    return b"data: " + msgspec.json.encode(chunk) + _END


def frames_of(chunks: Iterable[Mapping[str, Any]]) -> bytes:
    """Several chunks as frames."""
    return b"".join(map(frame_of, chunks))
