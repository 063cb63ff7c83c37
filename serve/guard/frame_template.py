"""Frames that are like the one before but for one text: told by their bytes, without reading their JSON.

An engine's stream is the same bytes again and again around what is new. What stands before and behind it is learnt
from two frames that were read; a frame with these bytes around a JSON string differs from them in that string alone.
"""

from typing import Any

import msgspec

from serve.errors import EngineError
from serve.guard.core import TextDelta, lone_delta
from serve.sse import chunk_of, data_of

_PROBE = "\x00?"  # no text of a model, and not the same in JSON as in text
_TRIES = 32  # after so many frames from which nothing was learnt, a stream is not of this kind

_string = msgspec.json.Decoder(str)


class PieceReader:
    """Reads one stream's frames, each with the blank line that ends it."""

    def __init__(self) -> None:
        self._before = self._behind = b""
        self._start = self._less = 0
        self._of: tuple[int, str, int] | None = None
        self._seen: tuple[int, str, int] | None = None
        self._tries = _TRIES

    def read(self, frame: bytes) -> TextDelta | None:
        """The one piece that a frame holds, if it is of the kind that was learnt; else None."""
        of = self._of
        if of is None or not frame.startswith(self._before) or not frame.endswith(self._behind):
            return None
        try:
            text = _string.decode(frame[self._start : len(frame) - self._less])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return TextDelta(*of, text) if text else None

    def frame(self, text: str) -> bytes:
        """A frame of the kind that was learnt, with another text."""
        return self._before[:-1] + msgspec.json.encode(text) + self._behind[1:]

    def learn(self, frame: bytes, chunk: dict[str, Any]) -> None:
        """Learn from a frame that `read` could not tell.

        Args:
            frame: All of it.
            chunk: Its data.
        """
        if not self._tries:
            return
        self._tries -= 1
        piece = lone_delta(chunk)
        of = piece[:3] if piece is not None else None
        if piece is None or of != self._seen:  # frames that come once, or in turn, are not worth it
            self._seen = of
            return
        encoded = msgspec.json.encode(piece.text)
        place = frame.find(encoded)
        if place < 0:
            return  # the engine writes this text otherwise
        before, behind = frame[: place + 1], frame[place + len(encoded) - 1 :]
        if _piece_of(before[:-1] + msgspec.json.encode(_PROBE) + behind[1:]) == piece._replace(text=_PROBE):
            self._before, self._behind, self._of = before, behind, of
            self._start, self._less, self._tries = len(before) - 1, len(behind) - 1, _TRIES


def _piece_of(frame: bytes) -> TextDelta | None:
    data = data_of(frame)
    try:
        return lone_delta(chunk_of(data)) if data is not None else None
    except EngineError:
        return None  # the text was found where it is something else
