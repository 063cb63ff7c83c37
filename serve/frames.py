"""SSE bytes to frames and back: what the guard reads of a stream, and what it writes."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serve.errors import EngineError

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
