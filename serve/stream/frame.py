"""Frames: the server-sent events of a stream, how its bytes are split into them, and what they have in common.

`FrameReader` is the one place that knows how events may be split: line ends may be LF, CR LF or CR, a byte order mark
may come first, comments and other fields may stand between, and the network may split them anywhere. What an event's
lines say is read in `http1.sse`. A `Frame` is one of them as bytes, as a parsed chunk, or as more of one text.

Almost every frame of a stream repeats the bytes of the one before, but for one string:

    data: {"id":"c1","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}
    data: {"id":"c1","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}
    ----------------------- prefix ---------------------------      ------- suffix --------

Once two frames have been parsed in full, a `FrameTemplate` knows the prefix and the suffix. Of a frame that has both,
only the JSON string between them is decoded, which costs far less than parsing the frame. Any other frame is parsed in
full, so a template that does not fit costs time but never correctness. A `FramePattern` is the same without
knowing what the text is: for those who pass the bytes on, and read none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from serve.errors import EngineError
from serve.http1.sse import BLANK_LINE, CR, LF, MAX_FRAME_BYTES, decode_chunk, encode_frame, frame_data, is_done

REASONING_NAMES = ("reasoning", "reasoning_content")  # the names that engines have for them
TEXTS = ("content", *REASONING_NAMES)
ARGUMENTS = "tool_calls"
_EMPTY: tuple[Any, ...] = (None, "", [])
_PROBE = "\x00?"  # a text that no model writes, spelt differently in JSON
_ATTEMPTS = 32  # frames in a row that may teach nothing before the stream is taken to be of another kind

_BOM = b"\xef\xbb\xbf"
# A CR that nothing follows yet may be the half of a CR LF.
_FRAME_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r(?!\Z)|\n)")
_TAIL_BYTES = 3  # one less than the longest end of a frame
_ENDS_FRAME = re.compile(rb"(?>\r\n|\r|\n){2}\Z")  # where nothing will follow
_DATA = b"data: "
_CHUNK = b"data: {"
_CHOICES = b'"choices":[{'
_ANY_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text|arguments)":"(?!")')  # one that is not empty
_STRING = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*"\Z')
Edit = Callable[[bytes], bytes]

_string = msgspec.json.Decoder(str)


class TextPlace(NamedTuple):
    """One text of an answer.

    Attributes:
        field: One of `TEXTS`, or `ARGUMENTS`.
        call: Index of the call whose arguments it is; -1 for a text.
    """

    choice: int
    field: str
    call: int


class TextDelta(NamedTuple):
    """The whole content of a chunk that adds to one text.

    Attributes:
        place: The text.
        text: What is added; not empty.
    """

    place: TextPlace
    text: str


def lone_delta(chunk: Mapping[str, Any]) -> TextDelta | None:
    """Returns the one delta of a text or of a call's arguments that a chunk holds; None if it holds anything else.

    Args:
        chunk: Of any shape: a foreign engine may send anything.
    """
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or chunk.get("usage") or chunk.get("error"):
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") is not None:
        return None
    if choice.get("logprobs") or choice.get("token_ids"):
        return None
    index = choice.get("index", 0)
    delta = choice.get("delta")
    members = [item for item in delta.items() if item[1] not in _EMPTY] if type(delta) is dict else []
    if len(members) != 1 or type(index) is not int:
        return None
    name, value = members[0]
    if name == ARGUMENTS:
        return _more_arguments(index, value[0]) if type(value) is list and len(value) == 1 else None
    return TextDelta(TextPlace(index, name, -1), value) if name in TEXTS and type(value) is str else None


def _more_arguments(choice: int, entry: Any) -> TextDelta | None:
    """Returns the delta of a call's entry that only continues its arguments."""
    if type(entry) is not dict or entry.get("id"):
        return None
    index = entry.get("index")
    function = entry.get("function")
    if type(index) is not int or type(function) is not dict or function.get("name"):
        return None
    text = function.get("arguments")
    return TextDelta(TextPlace(choice, ARGUMENTS, index), text) if type(text) is str and text else None


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
        repeated: Bytes of prefix and suffix.
    """

    prefix: bytes
    suffix: bytes
    place: TextPlace
    between: slice = field(init=False)
    repeated: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "between", slice(len(self.prefix) - 1, 1 - len(self.suffix)))
        object.__setattr__(self, "repeated", len(self.prefix) + len(self.suffix))

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
        if later.frame.find(text, start + 1) < 0 and b"\\" not in later.frame:
            return template  # the frame spells every text as it is, so that this one is where it was found
        # The text may also occur elsewhere in the frame: only in its own place does another one come back from there.
        return template if _read(template.render(_PROBE)) == later.delta._replace(text=_PROBE) else None

    def match(self, frame: bytes) -> str | None:
        """Returns the text that a frame adds, if it fits the template and adds any; None for any other frame."""
        text = frame.removeprefix(self.prefix).removesuffix(self.suffix)  # half the time of asking for both first
        if len(frame) - len(text) != self.repeated:
            return None
        try:
            return _string.decode(frame[self.between]) or None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def render(self, text: str) -> bytes:
        """Returns a frame with the given text."""
        return self.prefix + msgspec.json.encode(text)[1:-1] + self.suffix

    def inner(self, frame: bytes) -> bytes:
        """Returns the text of a frame that matches, as JSON without its quotes."""
        return frame[len(self.prefix) : -len(self.suffix)]

    def around(self, inner: bytes) -> bytes:
        """Returns a frame with a text, given as JSON without its quotes."""
        return self.prefix + inner + self.suffix


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


class Frame(Struct, eq=False, gc=False):
    """One frame, in as many forms as are known of it; the others are made when somebody asks for them.

    Attributes:
        raw: Its bytes, with the blank line that ends it; empty if it is not encoded yet.
        template: Set if the frame adds to one text and nothing else; it knows to which.
        text: What is added, with a template.
        chunk: Its data as parsed JSON; None if nobody has parsed it.
        learner: Learns from the frame when it is parsed.
        sent: Its bytes as the engine sent them, where a stage has changed them before anybody parsed them.
        whole: False for a piece of a frame too long to wait for, or that never ended. Nobody can tell what it holds.
    """

    raw: bytes
    template: FrameTemplate | None = None
    text: str = ""
    chunk: dict[str, Any] | None = None
    learner: TemplateLearner | None = None
    sent: bytes = b""
    whole: bool = True

    @classmethod
    def of(cls, chunk: dict[str, Any]) -> Frame:
        """Returns the frame of a chunk that the gateway made."""
        return cls(b"", chunk=chunk)

    def with_text(self, text: str) -> Frame:
        """Returns a frame that adds another text in the same place; this one has a template."""
        return Frame(b"", self.template, text)

    def data(self) -> bytes | None:
        """Returns its data as it was sent; None if it has none, like the comments that keep a connection alive."""
        return frame_data(self.encoded()) if self.whole else None

    def parsed(self, data: bytes | None = None) -> dict[str, Any]:
        """Returns its data (from `data`, if the caller has it) as a JSON object; `learner` learns from it.

        Raises:
            EngineError: It is none.
        """
        if self.chunk is None:
            self.chunk = decode_chunk(self.data() or b"" if data is None else data)
            if self.learner is not None:
                self.learner.learn(self.sent or self.raw, self.chunk)
        return self.chunk

    def readable(self) -> dict[str, Any] | None:
        """Returns its data as a JSON object; None for a comment, `[DONE]` and what a judge refuses anyway."""
        data = self.data()
        if data is None or is_done(data):
            return None
        try:
            return self.parsed(data)
        except EngineError:
            return None

    def encoded(self) -> bytes:
        if not self.raw:
            if self.template is not None:
                self.raw = self.template.render(self.text)
            elif self.chunk is not None:
                self.raw = encode_frame(self.chunk)
        return self.raw


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
    """Returns what frames look like that differ from one in a text alone; None for bytes that are no such frame."""
    if not raw.startswith(_CHUNK) or raw.find(LF) != len(raw) - len(BLANK_LINE):
        return None
    choices = raw.find(_CHOICES)  # what looks like a member before them may be anything
    member = _ANY_TEXT.search(raw, choices) if choices >= 0 else None
    if member is None:
        return None
    begin = member.end()
    end = raw.find(b'"', begin)
    return None if raw[end - 1 : end] == b"\\" or CR in raw else FramePattern(raw[:begin], raw[end:])


class FrameReader:
    """Splits one stream into frames, in time that is linear in its bytes.

    Args:
        limit_bytes: A longer frame comes in pieces, as it arrives.
        exact: Frames keep the line ends that the engine wrote, and a byte order mark is a piece of its own. Otherwise
            line ends become LF, and the mark is left out.
        edit: Returns what is left of a frame, before anybody reads it.
        allowance_bytes: What `edit` takes out may make a frame longer by so much.

    Attributes:
        between: Nothing of the next frame has arrived.
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
        self.between = True

    @property
    def pending_bytes(self) -> int:
        """The bytes that have arrived of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes) -> tuple[Frame] | Iterator[Frame]:
        """Returns the frames that are complete now, to be taken before the next call; where data is one, as a tuple."""
        if self.between:
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
        return self._frames(self._split(data))

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
            rest += b"\n" if rest.endswith(b"\n") else BLANK_LINE
        if self._edit is not None and not self._in_pieces:
            rest = self._edit(rest)
        return (Frame(rest, whole=not self._in_pieces),)

    def _frames(self, parts: list[bytes]) -> Iterator[Frame]:
        """Yields a frame for each of the parts of a stream; the template is that of the moment."""
        learner, edit = self._learner, self._edit
        for raw in parts:
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
            self.between = False
            yield Frame(piece, whole=False)

    def _split(self, data: bytes) -> list[bytes]:
        """Returns the frames that end in data; what follows them waits in `_rest`."""
        if not self._begun:
            return self._split_first(data)
        if self._rest or CR in data:
            frames = self._split_anywhere(data)
        elif data.find(LF) == len(data) - len(BLANK_LINE) and data.endswith(BLANK_LINE):
            frames = [data]  # exactly one frame of one line
        else:
            *frames, rest = data.split(BLANK_LINE)
            self._rest += rest
            frames = [frame + BLANK_LINE for frame in frames]
        self.between = not self._rest and (not self._in_pieces or bool(frames))
        return frames

    def _split_first(self, data: bytes) -> list[bytes]:
        """Does what `_split` does where a byte order mark may come, which may itself be split."""
        start = bytes(self._rest) + data
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._rest = bytearray(start)
            return []
        self._begun = True
        self._rest = bytearray()
        frames = self._split(start.removeprefix(_BOM))
        if not self._exact or not start.startswith(_BOM):
            return frames
        return [_BOM, *frames]  # no field begins with it, so nobody takes it for one

    def _split_anywhere(self, data: bytes) -> list[bytes]:
        """Does what `_split` does for any read: one within a frame, or with CR."""
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
