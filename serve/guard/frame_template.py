"""Reads a stream's frames by their bytes, without parsing their JSON.

Almost every frame of a stream repeats the bytes of the one before, but for one string:

    data: {"id":"c1","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}
    data: {"id":"c1","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}
    ----------------------- prefix ---------------------------      ------- suffix --------

Once two frames have been parsed in full, a `FrameTemplate` knows the prefix and the suffix. Of a frame that has both,
only the JSON string between them is decoded, which costs far less than parsing the frame (docs/adr/0012). Any other
frame is parsed in full, so a template that does not fit costs time but never correctness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from serve.errors import EngineError
from serve.guard.core import Place, TextDelta, lone_delta
from serve.http1.sse import decode_chunk, frame_data

_PROBE = "\x00?"  # a text that no model writes, spelt differently in JSON
_ATTEMPTS = 32  # frames in a row that may teach nothing before the stream is taken to be of another kind

_string = msgspec.json.Decoder(str)


class ReadFrame(NamedTuple):
    """A frame that was parsed, and the one text delta that it holds."""

    frame: bytes
    delta: TextDelta


@dataclass(frozen=True, slots=True)
class FrameTemplate:
    """Frames that differ in one JSON string only, the text of a delta.

    Whatever matches is exactly one frame: a JSON string holds no line break.

    Attributes:
        prefix: The bytes before the text, with the quote that begins it.
        suffix: The bytes after it, from the quote that ends it to the blank line that ends the frame.
        place: The text to which they add.
        between: Where the string with its quotes is in a frame.
    """

    prefix: bytes
    suffix: bytes
    place: Place
    between: slice = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "between", slice(len(self.prefix) - 1, 1 - len(self.suffix)))

    @classmethod
    def learn(cls, earlier: ReadFrame, later: ReadFrame) -> FrameTemplate | None:
        """Returns the template of two frames, or None if they have none in common."""
        text = msgspec.json.encode(later.delta.text)
        start = later.frame.find(text)
        if start < 0:
            return None  # the engine spells this text in another way, such as with escapes
        template = cls(later.frame[: start + 1], later.frame[start + len(text) - 1 :], later.delta.place)
        if (template.place, template.match(earlier.frame)) != earlier.delta:
            return None
        # The text may also occur elsewhere in the frame: only in its own place does another one come back from there.
        return template if _read(template.render(_PROBE)) == later.delta._replace(text=_PROBE) else None

    def match(self, frame: bytes) -> str | None:
        """Returns the text that a frame adds, if it fits the template and adds any; None for any other frame."""
        if not frame.startswith(self.prefix) or not frame.endswith(self.suffix):
            return None
        try:
            return _string.decode(frame[self.between]) or None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def render(self, text: str) -> bytes:
        """Returns a frame with the given text."""
        return self.prefix + msgspec.json.encode(text)[1:-1] + self.suffix


class TemplateLearner:
    """Keeps the template of one stream up to date.

    Attributes:
        template: The latest one; None until two parsed frames in a row had one in common.
    """

    def __init__(self) -> None:
        self.template: FrameTemplate | None = None
        self._earlier: ReadFrame | None = None
        self._attempts_left = _ATTEMPTS

    def learn(self, frame: bytes, chunk: dict[str, Any]) -> FrameTemplate | None:
        """Learns from a frame that did not match the template; returns the latest template.

        Args:
            frame: All of it, with the blank line that ends it.
            chunk: Its data.
        """
        if not self._attempts_left:
            return self.template
        self._attempts_left -= 1
        delta = lone_delta(chunk)
        earlier = self._earlier
        later = ReadFrame(frame, delta) if delta is not None else None
        self._earlier = later
        template = FrameTemplate.learn(earlier, later) if earlier is not None and later is not None else None
        if template is not None:
            self.template = template
            self._attempts_left = _ATTEMPTS
        return self.template


def _read(frame: bytes) -> TextDelta | None:
    data = frame_data(frame)
    try:
        return lone_delta(decode_chunk(data)) if data is not None else None
    except EngineError:
        return None
