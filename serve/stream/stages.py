"""Stages of any answer: our name of a model for the engine's, a stream's end, and what clients must not get of it."""

import json
import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from serve.errors import EngineError
from serve.http1.sse import is_done, object_in
from serve.stream.ending import INCOMPLETE, Ending, error_around, is_readable
from serve.stream.frame import Frame, FrameTemplate
from serve.stream.line import Check, Stage, ignore

# vLLM's and SGLang's, and what both begin with. `in` costs three times what `find` does: it tries for a number first.
_DRAFT_REPORT = re.compile(rb'"(?:speculative_decoding|spec_tokens_details)"\s*:\s*(?=[{\[])')
_BEGINS_REPORT = b'"spec'
_DECODER = json.JSONDecoder()
# In a chunk that may hold nothing but usage. Within a JSON string the quotes would be escaped: no text looks so.
NO_CHOICES = (b'"choices":[]', b'"choices": []')
_USAGE = b'"usage"'


class _Last(Struct, gc=False):
    """A chunk, as far as it tells usage."""

    choices: list[Raw]
    usage: dict[str, Raw] | None = None


_decode_last = msgspec.json.Decoder(_Last).decode


class End(Check):
    """Judges how a plain stream ends, and withholds all that would make a broken one look complete.

    An error in the shape that clients of chat read passes as it is. Of any other, and of half an answer, `failure` is
    what the client must get in its place. Whatever breaks after a complete answer is nobody's loss, and says nothing.

    Args:
        several: The request may be for several answers, so that only the engine's `[DONE]` says that none is missing.
        waits: The client gets no error yet: somebody may go on with the answer.

    Attributes:
        done: The answer is complete, and the engine's `[DONE]` has passed.
        told: The engine's own error frame has passed.
        failure: Why the stream is broken; None as long as nothing says so.
        withheld: The error frame that could have passed.
    """

    skim = staticmethod(ignore)

    def __init__(self, *, several: bool = False, waits: bool = False) -> None:
        self._several = several
        self._waits = waits
        self.withheld: Frame | None = None
        self.over = False
        self.done = False
        self.told = False
        self.failure: EngineError | None = None
        self._ending = Ending()

    @property
    def complete(self) -> bool:
        """True if the client has the whole answer, but perhaps not its `[DONE]`."""
        return self.done or (self.failure is None and self._ending.complete and not self._several)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame, or nothing if it is an error of another shape, or says more after the end."""
        if self.over or self.done:
            return ()
        if frame.template is not None and not self._ending.any_over:  # but for its text one that was judged before
            return (frame,)
        try:
            failure = self._judge(frame)
        except EngineError as error:  # no JSON, or not of an object
            failure = error
        if failure is None:
            return () if self._ending.beyond else (frame,)
        self.over = True
        if self.complete:
            return ()
        self.failure = failure
        if is_readable(frame.data()):
            if self._waits:
                self.withheld = frame
            else:
                self.told = True
        return (frame,) if self.told else ()

    def _judge(self, frame: Frame) -> EngineError | None:
        ending = self._ending
        if not frame.whole:  # too long to be looked at; nobody ends a stream so
            ending.feed_other(whole=False)
            return None
        if frame.chunk is not None:
            return ending.feed_chunk(frame.chunk)
        if (data := object_in(frame.raw)) is not None:
            return ending.feed(data)
        data = frame.data()
        if data is None:
            ending.feed_other(whole=True)
            return error_around(frame.raw)
        if is_done(data):
            ending.feed_other(whole=True)
            self.done = ending.complete
            return None if self.done else EngineError(INCOMPLETE)
        return ending.feed(data) or error_around(frame.raw)


class Rename(Stage):
    """Puts our name of a model in place of the engine's in one response.

    Only a member `model` of exactly that value is replaced. The quotes of such a member inside a text are escaped, so
    that the bytes of a text never look like one.

    Args:
        served: The engine's name.
        ours: The name in the response to the client.
    """

    def __init__(self, served: str, ours: str) -> None:
        self._pattern = _pattern(served)
        self._theirs: FrameTemplate | None = None
        self._mine: FrameTemplate
        self._ours = rb"\g<1>" + json.dumps(ours).encode().replace(b"\\", rb"\\")

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame under our name."""
        if (template := frame.template) is not None:
            if template is not self._theirs:
                self._theirs, self._mine = template, self._renamed(template)
            return (Frame(self._mine.around(template.inner(frame.raw)), self._mine, frame.text),)
        renamed = self.whole(frame.raw)
        if renamed == frame.raw:
            return (frame,)
        return (Frame(renamed, learner=frame.learner, sent=frame.raw, whole=frame.whole),)

    def _renamed(self, template: FrameTemplate) -> FrameTemplate:
        return FrameTemplate(self.whole(template.prefix), self.whole(template.suffix), template.place)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body under our name."""
        return self._pattern.sub(self._ours, body)


class WithoutDrafts(Stage):
    """Takes out what an engine reports of one request's drafts: how many were accepted shows what others were answered.

    vLLM puts it into `metrics`, SGLang into its own members; `null` takes its place, as where an engine has none.
    """

    skim = staticmethod(ignore)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame without the report."""
        raw = frame.raw
        if frame.template is not None or raw.find(_BEGINS_REPORT) < 0:
            return (frame,)
        left = self.whole(raw)
        return (frame,) if left is raw else (Frame(left, learner=frame.learner, sent=raw, whole=frame.whole),)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body without the report."""
        if body.find(_BEGINS_REPORT) < 0:
            return body
        left: list[bytes] = []
        place = 0
        for member in _DRAFT_REPORT.finditer(body):
            if member.end() < place:  # inside of one that is out already
                continue
            left += (body[place : member.end()], b"null")
            place = _end_of_value(body, member.end())
        return b"".join((*left, body[place:])) if left else body


class WithoutUsage(Stage):
    """Takes the chunk out that ends a stream with its usage, for a client that did not ask for it.

    It has no choice, and clients that expect none of its kind fail at `choices[0]`. The gateway may have asked for it,
    or the engine sends it unasked.
    """

    skim = staticmethod(ignore)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame, or nothing if it only tells usage."""
        raw = frame.raw
        if frame.template is not None or raw.find(_USAGE) < 0:
            return (frame,)
        alone = (NO_CHOICES[0] in raw or NO_CHOICES[1] in raw) and _is_usage(frame.data())
        return () if alone else (frame,)


def _is_usage(data: bytes | None) -> bool:
    """Returns whether a chunk has no choice and tells usage. Azure's first one has no choice, but tells of filters."""
    try:
        last = _decode_last(data or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return not last.choices and last.usage is not None


def _end_of_value(body: bytes, start: int) -> int:
    """Returns where the object or list ends that begins here; the end of the body if it does not."""
    text = body[start:].decode("latin-1")  # a byte each, so that places agree
    try:
        return start + _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return len(body)


def _pattern(served: str) -> re.Pattern[bytes]:
    """Returns what finds the member however its value is escaped: JSON may escape slashes, and all but ASCII."""
    spellings = {json.dumps(served, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)}
    values = b"|".join(re.escape(value).replace(b"/", rb"\\?/") for value in sorted(spellings))
    return re.compile(rb'("model"\s*:\s*)(?:%s)' % values)
