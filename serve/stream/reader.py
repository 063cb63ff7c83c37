"""Cuts the bytes of a stream into frames: the one place that knows how server-sent events may be cut.

Line ends may be LF, CR LF or CR, a byte order mark may come first, comments and other fields may stand between, and the
network may cut anywhere. What a frame holds is read in `http1.sse`.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from serve.http1.sse import BLANK_LINE, CR, LF, MAX_FRAME_BYTES
from serve.stream.frame import Frame, TemplateLearner

_BOM = b"\xef\xbb\xbf"
# A CR that nothing follows yet may be the half of a CR LF.
_FRAME_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r(?!\Z)|\n)")
_TAIL_BYTES = 3  # one less than the longest end of a frame
_ENDS_FRAME = re.compile(rb"(?>\r\n|\r|\n){2}\Z")  # where nothing will follow
_DATA = b"data: "
_CHUNK = b"data: {"
_CHOICES = b'"choices":[{'
_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text|arguments)":"(?!")')  # one that is not empty
_STRING = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*"\Z')
Edit = Callable[[bytes], bytes]


class FramePattern:
    """Frames that differ in one text alone, by their bytes. A JSON string holds no line break and no quote of its own.

    Args:
        prefix: The bytes before the text, with the quote that begins it.
        suffix: Those after it, from the quote that ends it to the blank line that ends the frame.

    Attributes:
        begin: Bytes before the text.
        end: Bytes after it.
    """

    __slots__ = ("begin", "end", "prefix", "suffix")

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self.prefix, self.suffix = prefix, suffix
        self.begin, self.end = len(prefix), len(suffix)

    def count(self, data: bytes) -> int:
        """Returns how many frames data is, if it begins and ends as one and all of them fit; else 0."""
        if data.find(LF) == len(data) - len(BLANK_LINE):
            return 1 if _STRING.match(data, self.begin - 1, len(data) - self.end + 1) else 0
        frames = data.count(self.suffix)
        alike = frames == data.count(BLANK_LINE) == data.count(BLANK_LINE + self.prefix) + 1
        quotes = self.prefix.count(b'"') + self.suffix.count(b'"')
        return frames if alike and CR not in data and data.count(b'"') == frames * quotes else 0


def pattern_of(raw: bytes) -> FramePattern | None:
    """Returns what frames look like that differ from one in a text alone; None if it is not one frame of such a kind.

    Args:
        raw: Its bytes.
    """
    if not raw.startswith(_CHUNK) or raw.find(LF) != len(raw) - len(BLANK_LINE):
        return None
    choices = raw.find(_CHOICES)  # what looks like a member before them may be anything
    member = _TEXT.search(raw, choices) if choices >= 0 else None
    if member is None:
        return None
    begin = member.end()
    end = raw.find(b'"', begin)
    return None if raw[end - 1 : end] == b"\\" or CR in raw else FramePattern(raw[:begin], raw[end:])


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
        self._between = True  # nothing of the next frame has arrived

    @property
    def pending_bytes(self) -> int:
        """The bytes that have arrived of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes) -> tuple[Frame] | Iterator[Frame]:
        """Returns the frames that are complete now, to be taken before the next call; where data is one, as a tuple."""
        if self._between:
            template = self._learner.template
            if template is not None and (text := template.match(data)) is not None:
                return (Frame(data, template, text),)  # as nearly always; nothing is to be taken out of it
            if data.find(LF) == len(data) - len(BLANK_LINE) and data.startswith(_DATA) and data.endswith(BLANK_LINE):
                if self._edit is not None:
                    data = self._edit(data)
                    if template is not None and (text := template.match(data)) is not None:
                        return (Frame(data, template, text),)
                if CR not in data and len(data) <= self._limit_bytes:
                    self._begun = True
                    return (Frame(data, learner=self._learner),)
        return self._frames(self._cut(data))

    def finish(self) -> Sequence[Frame]:
        """Returns what is left where the stream ends, with the blank line that it lacks.

        Some servers end with `[DONE]` and no line end. Of anything else, what follows must not become a part.
        """
        rest, self._rest = bytes(self._rest), bytearray()
        if not rest and not self._in_pieces:
            return ()
        if not self._exact:
            rest = _with_lf(rest)
        if not _ENDS_FRAME.search(rest):
            rest += BLANK_LINE
        if self._edit is not None and not self._in_pieces:
            rest = self._edit(rest)
        return (Frame(rest, whole=not self._in_pieces),)

    def pattern(self, frame: Frame) -> FramePattern | None:
        """Returns what frames look like that differ from the last one in a text alone; None if something follows it."""
        return pattern_of(frame.raw) if self._between else None

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
        if not _FRAME_END.search(seen):
            return []
        text = bytes(self._rest)
        frames, start = [], 0
        for end in _FRAME_END.finditer(text):
            frames.append(text[start : end.end()])
            start = end.end()
        self._rest = bytearray(text[start:])
        return frames if self._exact else [_with_lf(frame) for frame in frames]


def _with_lf(frame: bytes) -> bytes:
    """Returns a frame with LF at the end of its lines. JSON escapes line ends, so this changes no text."""
    return frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in frame else frame
