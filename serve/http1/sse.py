"""Server-sent events as bytes: what one frame holds, and how one is written."""

import gc
from collections.abc import Mapping
from typing import Any

import msgspec

from serve.errors import EngineError, GatewayError
from serve.http1.allowance import has_room
from serve.parsing.strict_json import has_long_numbers

LF, CR = b"\n\r"  # as numbers: to look for one of those takes a quarter of the time
BLANK_LINE = b"\n\n"
_DONE_DATA = b"[DONE]"
DONE = b"data: " + _DONE_DATA + BLANK_LINE
ALIVE = b": waiting" + BLANK_LINE  # a comment, which no client shows
_LONG_BYTES = 256 * 1024
# Of objects and lists, of members, of values and of escapes. Texts may hold such marks too; log-probabilities of 20,000
# tokens are fewer, and so is all that a model says at once.
_MOST_MARKS = {b"{[": 500_000, b":": 500_000, b",": 600_000, b"\\": 1_000_000}
# Of a frame that somebody waits for as a whole; a chunk of an answer has some hundred bytes.
MAX_FRAME_BYTES = 1024 * 1024


def encode_frame(payload: Mapping[str, Any]) -> bytes:
    """Returns a JSON object as one frame."""
    return b"data: " + msgspec.json.encode(payload) + BLANK_LINE


def error_frame(error: GatewayError) -> bytes:
    """Returns the last frame of a stream that broke.

    No `[DONE]` may follow it: that is how a client tells a broken stream from a complete one.
    """
    return encode_frame(error.to_body())


def frame_data(frame: bytes) -> bytes | None:
    """Returns a frame's data; None if it has none, like what keeps a connection alive: comments, and empty events.

    The frame may have any line ends, and has the blank line that ends it.
    """
    if frame.startswith(b"data: ") and frame.find(LF) == len(frame) - 2 and CR not in frame:
        return frame[6:-2] or None
    lines = [line[5:].removeprefix(b" ") for line in frame.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) or None


def object_in(frame: bytes) -> bytes | None:
    """Returns the data of a frame that is one line and begins as an object does, as nearly all are; None for others."""
    is_line = frame.startswith(b"data: {") and frame.find(LF) == len(frame) - 2 and CR not in frame
    return frame[6:-2] if is_line else None


def is_comment(frame: bytes) -> bool:
    """Returns whether a frame holds comments and nothing else."""
    return all(line[:1] in (b":", b"") for line in frame.splitlines())


def is_done(data: bytes) -> bool:
    """Returns True for the data of the frame that ends a complete stream."""
    return data.strip() == _DONE_DATA


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
    if not has_room(len(data)):
        raise EngineError("The gateway has no memory left to read what the engine sent.")
    was_enabled = gc.isenabled()
    gc.disable()  # or it would look through all that is built, again and again
    try:
        return msgspec.json.decode(data)
    finally:
        if was_enabled:
            gc.enable()
