"""Cuts the bytes of a stream into frames: the one place that knows how server-sent events may be written and cut.

Line ends may be LF, CR LF or CR, a byte order mark may come first, comments and other fields may stand between, and the
network may cut anywhere.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from serve.http1.sse import BLANK_LINE, CR, LF, MAX_FRAME_BYTES
from serve.stream.frame import Frame, TemplateLearner

_BOM = b"\xef\xbb\xbf"
# A CR that nothing follows yet may be the half of a CR LF.
_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r(?!\Z)|\n)")
_TAIL_BYTES = 3  # one less than the longest end of a frame
_ENDED = re.compile(rb"(?>\r\n|\r|\n){2}\Z")
_CHUNK = b"data: {"
_CHOICES = b'"choices":[{'
Opening = bytes | tuple[bytes, ...]
NO_OPENING: Opening = ()  # nothing begins with it
Edit = Callable[[bytes], bytes]


class FrameReader:
    """Cuts one stream into frames, in time that is linear in its bytes.

    Args:
        limit_bytes: A longer frame comes in pieces, as it arrives.
        exact: Frames keep the line ends that the engine wrote, and a byte order mark is a piece of its own. Otherwise
            line ends become LF, and the mark is left out.
        edit: Returns what is left of a frame, before anybody reads it.
        allowance_bytes: What `edit` takes out may make a frame longer by so much.
    """

    def __init__(
        self,
        limit_bytes: int = MAX_FRAME_BYTES,
        *,
        exact: bool = False,
        edit: Edit | None = None,
        allowance_bytes: int = 0,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._waits_bytes = limit_bytes + allowance_bytes
        self._edit = edit
        self._exact = exact
        self._learner = TemplateLearner()
        self._rest = bytearray()  # of a frame that is not complete
        self._begun = False  # the stream has, and a byte order mark can't follow
        self._in_pieces = False  # pieces of the present frame have been returned
        self._between = False  # nothing of the next frame has arrived

    @property
    def pending_bytes(self) -> int:
        """The bytes that have arrived of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterable[Frame]:
        """Returns the frames that are complete now, to be taken before the next call."""
        template = self._learner.template
        if template is not None and self._between and self._edit is None and (text := template.match(data)) is not None:
            return (Frame(data, template, text),)  # exactly one frame like those before, as nearly always
        return self._frames(self._cut(data))

    def finish(self) -> Sequence[Frame]:
        """Returns what is left where the stream ends, with the blank line that it lacks.

        Some servers end with `[DONE]` and no line end. Of anything else, what follows must not become a part.
        """
        rest, self._rest = bytes(self._rest), bytearray()
        if not rest and not self._in_pieces:
            return ()
        if not _ENDED.search(rest):
            rest += BLANK_LINE
        if self._edit is not None and not self._in_pieces:
            rest = self._edit(rest)
        return (Frame(rest, whole=not self._in_pieces),)

    def opening(self, frame: Frame) -> Opening:
        """Returns how the last frame begins, up to its first choice, if it is a chunk on one line and nothing follows.

        JSON escapes quotes and line ends, so a line that begins so is a chunk as well: neither an error nor the end of
        the stream nor its usage.
        """
        raw = frame.raw
        if self._between and raw.find(LF) == len(raw) - 2 and raw.startswith(_CHUNK) and raw.endswith(BLANK_LINE):
            choices = raw.find(_CHOICES)
            if choices >= 0:
                return raw[: choices + len(_CHOICES)]
        return NO_OPENING

    def _frames(self, cut: list[bytes]) -> Iterator[Frame]:
        """Yields a frame for each of those that were cut; the template is that of the moment."""
        learner, edit = self._learner, self._edit
        for raw in cut:
            if edit is not None and not self._in_pieces:
                raw = edit(raw)
            if self._in_pieces:
                self._in_pieces = False
                yield Frame(raw, whole=False)
            elif len(raw) > self._limit_bytes:
                yield Frame(raw, whole=False)
            elif learner.template is not None and (text := learner.template.match(raw)) is not None:
                yield Frame(raw, learner.template, text)
            else:
                yield Frame(raw, learner=learner)
        if len(self._rest) > self._waits_bytes:
            piece, self._rest = bytes(self._rest[:-_TAIL_BYTES]), self._rest[-_TAIL_BYTES:]
            self._in_pieces = True
            self._between = False
            yield Frame(piece, whole=False)

    def _cut(self, data: bytes) -> list[bytes]:
        """Returns the frames that end in data; what follows them waits in `_rest`."""
        if not self._begun:
            return self._cut_first(data)
        if self._rest or CR in data:
            frames = self._cut_anywhere(data)
        elif data.find(LF) == len(data) - len(BLANK_LINE) and data.endswith(BLANK_LINE):
            frames = [data]  # exactly one frame of one line
        else:
            *frames, rest = data.split(BLANK_LINE)
            self._rest += rest
            frames = [frame + BLANK_LINE for frame in frames]
        self._between = not self._rest and (not self._in_pieces or bool(frames))
        return frames

    def _cut_first(self, data: bytes) -> list[bytes]:
        """Does what `_cut` does where a byte order mark may come, which may itself be cut."""
        start = bytes(self._rest) + data
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._rest = bytearray(start)
            return []
        self._begun = True
        self._rest = bytearray()
        frames = self._cut(start.removeprefix(_BOM))
        if not self._exact or not start.startswith(_BOM):
            return frames
        return [_BOM, *frames]  # no field begins with it, so nobody takes it for one

    def _cut_anywhere(self, data: bytes) -> list[bytes]:
        """Does what `_cut` does for any read: one within a frame, or with CR."""
        seen = self._rest[-_TAIL_BYTES:] + data  # what came before holds no end of a frame, so nobody looks there again
        self._rest += data
        if not _END.search(seen):
            return []
        text = bytes(self._rest)
        frames, start = [], 0
        for end in _END.finditer(text):
            frames.append(text[start : end.end()])
            start = end.end()
        self._rest = bytearray(text[start:])
        return frames if self._exact else [_with_lf(frame) for frame in frames]


def _with_lf(frame: bytes) -> bytes:
    """Returns a frame with LF at the end of its lines. JSON escapes line ends, so this changes no text."""
    return frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in frame else frame
