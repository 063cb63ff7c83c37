"""The line of a response: the stages that its frames pass, one after the other, and the bytes that are kept of it."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from serve.http1.asgi import Drain, Sink
from serve.http1.sse import BLANK_LINE, MAX_FRAME_BYTES, is_done
from serve.stream.frame import Edit, Frame, FramePattern, FrameReader, pattern_of

_QUOTE = ord('"')
_NO_PATTERN = -1  # bytes around a text: no frame has so few
_BATCH = 256  # kept parts that are folded at once; to count more of them down, Python makes an object for each
_MOST_KEPT_BYTES = 4 * 1024 * 1024
_LONG_FRAME_BYTES = 8 * 1024  # a frame of so much may hold hundreds of calls

Skim = Callable[[bytes, int], object]
Take = Callable[[bytes], Sequence[Frame] | None]


class Stage:
    """A stage of a line. As it is, it lets everything pass.

    Attributes:
        skim: Takes, in place of `feed`, the bytes and the number of frames that differ from the one before in the text
            that they add, and in nothing else. None for a stage that must see every frame; `count` for one that wants
            their number alone.
        takes: It must see every frame, but sees many of them with less ado, by `take`.
        take: Does what `feed` does with the bytes of one frame. Returns None, and has done nothing, for one that has to
            be fed. None as long as all have to be.
        chunks: The chunks of the stream so far, of a stage whose `skim` is `count`.
        exact: The engine's bytes pass as they are. A stage that reads every frame gets them with LF at their line ends.
        limit_bytes: A longer frame comes in pieces; None where that does not matter.
        edit: Returns what is left of a frame's bytes before any stage gets it; None for a stage that takes nothing out.
        allowance_bytes: What it takes out may make a frame longer by so much.
    """

    edit: Edit | None = None
    allowance_bytes = 0
    skim: Skim | None = None
    takes = False
    take: Take | None = None
    chunks = 0
    exact = True
    limit_bytes: int | None = None

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frames that go on for one that came."""
        return (frame,)

    def finish(self) -> Sequence[Frame]:
        """Returns the frames that are left when the stream is over."""
        return ()

    def whole(self, body: bytes) -> bytes:
        """Returns what goes on of an answer that does not stream."""
        return body


PASS = Stage()


class Check(Stage):
    """A stage that judges the answer. One that is not `exact` ends the stream itself: it wants no frame without an end.

    Attributes:
        over: It needs nothing more of the stream.
        slow: What it does next may take longer than other requests should wait.
    """

    over = False
    slow = False


_NO_CHECK = Check()


def ignore(data: bytes, frames: int) -> None:
    """The `skim` of a stage to which a frame like the one before says nothing."""


def count(data: bytes, frames: int) -> None:
    """The `skim` of a stage that counts: the line adds to its `chunks` itself, since a call would cost more."""


class Kept:
    """The bytes of one stream, frames of one text folded to one frame from time to time.

    A frame has some hundred bytes around the few of its text, so that a long answer shrinks to its text.

    Args:
        limit_bytes: Of more than that nothing is kept.

    Attributes:
        parts: The bytes, as they came or folded.
        lost: They were too many.
    """

    def __init__(self, limit_bytes: int = _MOST_KEPT_BYTES) -> None:
        self.parts: list[bytes] = []
        self.lost = False
        self._most = _BATCH
        self._limit_bytes = limit_bytes
        self._settled = 0  # parts that are counted, and not folded any more
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Keeps bytes of any shape."""
        self.parts.append(data)
        if len(self.parts) > self._most:
            self.fold()

    def fold(self) -> int:
        """Makes one frame of all that came since the last time, if they are frames of one text, each a part.

        Returns:
            After how many further parts it is time again, for those who put them into `parts` themselves.
        """
        like, run = pattern_of(self.parts[-1]), self.parts[self._settled :]
        if like is not None and all(
            [part.startswith(like.prefix) and part.endswith(like.suffix) and like.count(part) for part in run]
        ):
            self.parts[self._settled :] = [_folded(run, like)]
        self._bytes += sum(map(len, self.parts[self._settled :]))
        if self._bytes > self._limit_bytes:
            self.lost = True
        if self.lost:
            self.parts.clear()
        self._settled = len(self.parts)
        self._most = self._settled + _BATCH
        return _BATCH


def _folded(frames: list[bytes], like: FramePattern) -> bytes:
    """Returns one frame with the texts of several: JSON strings without their quotes can be joined."""
    begin, end = like.begin, -like.end
    texts = b"".join([frame[begin:end] for frame in frames])
    if _QUOTE in texts:  # of the text itself, or parts that hold several frames
        return b"".join(frames).replace(like.suffix + like.prefix, b"")
    return like.prefix + texts + like.suffix


class _Plan(NamedTuple):
    """The use that a line makes of stages, by their places.

    Attributes:
        stages: Those that a frame passes.
        textual: Those that a frame of a known template passes. To the others it says nothing, and never will, as long
            as no stage before them has made another frame of it.
        exact: The engine's bytes reach all of them as they are.
        may_skim: No stage must see every frame.
        taker: The place among `textual` of the one that may take them, unless one before it must see them.
    """

    stages: Sequence[int]
    textual: Sequence[int]
    checks: Sequence[int]
    counter: int | None
    skim: int | None
    editor: int | None
    exact: bool
    may_skim: bool
    taker: int | None


@lru_cache(maxsize=256)  # there are some dozen, and to make one takes as long as ten tokens
def _plan(kinds: tuple[type[Stage], ...]) -> _Plan:
    editors = [place for place, kind in enumerate(kinds) if kind.edit is not None]
    # A stage that lets all pass would cost each frame a call, and the stream its short cut.
    stages = [place for place, kind in enumerate(kinds) if kind.feed is not Stage.feed]
    textual: list[int] = []
    as_it_was = True
    for place in stages:
        as_it_was = as_it_was and kinds[place].skim is not None
        if not (as_it_was and kinds[place].skim is ignore) or issubclass(kinds[place], Check):
            textual.append(place)
    counters = [place for place in stages if kinds[place].skim is count]
    ahead = len([place for place in textual[:1] if place in counters])
    skims = [place for place in stages if kinds[place].skim not in (None, ignore, count)]
    return _Plan(
        stages,
        textual,
        [place for place in stages if issubclass(kinds[place], Check)],
        counters[-1] if counters else None,
        skims[-1] if skims else None,
        editors[-1] if editors else None,
        exact=all(kinds[place].exact for place in stages),
        may_skim=as_it_was and not editors,
        taker=ahead if len(textual) > ahead and kinds[textual[ahead]].takes else None,
    )


class Line:
    """The stages of one response; the engine's bytes come in, and the bytes for the client go out.

    Args:
        stages: In the order in which a frame passes them. Of several checks, the last one ends the stream. At most one
            stage counts, one has a `skim` that is called, and one edits.
        kept: Gets the engine's bytes, too.

    Attributes:
        over: The check needs nothing more of the stream.
        slow: What comes next may take longer than other requests should wait.
    """

    def __init__(self, stages: Iterable[Stage], kept: Kept | None = None) -> None:
        self._kept = kept
        each = tuple(stages)
        plan = _plan(tuple(map(type, each)))
        self._stages = [each[place] for place in plan.stages]
        self._textual = [each[place] for place in plan.textual]
        self._checks = [cast(Check, each[place]) for place in plan.checks]
        self._check = self._checks[-1] if self._checks else _NO_CHECK
        self._counter = None if plan.counter is None else each[plan.counter]
        self._skim = None if plan.skim is None else each[plan.skim].skim
        editor = PASS if plan.editor is None else each[plan.editor]
        self._first = self._textual[0].feed if self._textual else PASS.feed
        self._others = self._textual[1:]
        self._wants_half = self._check.exact
        self._waits = not plan.exact or bool(self._checks)
        self._many_checks = len(self._checks) > 1
        limits = [stage.limit_bytes for stage in self._stages if stage.limit_bytes is not None]
        self._reader = FrameReader(
            min(limits) if limits else MAX_FRAME_BYTES,
            exact=plan.exact,
            edit=editor.edit,
            allowance_bytes=editor.allowance_bytes,
        )
        self._may_skim = plan.may_skim
        self._taker = plan.taker
        self._pattern: FramePattern | None = None  # of what comes next, if it only adds to the same text
        self.over = False
        self.slow = self._is_slow()

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes that may be sent now."""
        if self._kept is not None:
            self._kept.add(data)
        frames = self._reader.feed(data)
        if not isinstance(frames, tuple):
            return self._feed_each(frames)
        (frame,) = frames
        if frame.template is None:
            passed = _through(self._stages, (frame,))
        else:
            passed = self._first(frame)
            if passed and self._others:
                passed = _through(self._others, passed)
        if self._may_skim:
            self._note(frame, passed)
        else:
            self.slow = self._check.slow or (self._many_checks and self._is_slow())
        self.over = self._check.over
        if len(passed) == 1:
            return passed[0].raw or passed[0].encoded()
        return _encoded(passed) if passed else b""

    def _feed_each(self, frames: Iterable[Frame]) -> bytes:
        """Returns the bytes that may be sent for any number of frames."""
        out: list[bytes] = []
        frame: Frame | None = None
        passed: Sequence[Frame] = ()
        for frame in frames:
            passed = _through(self._stages if frame.template is None else self._textual, (frame,))
            out.append(_encoded(passed))
            if self._check.over:
                break
        if self._may_skim:
            self._note(frame, passed)
        else:
            self.slow = self._is_slow() or (self._waits and self._reader.pending_bytes >= _LONG_FRAME_BYTES)
        self.over = self._check.over
        return out[0] if len(out) == 1 else b"".join(out)

    def _note(self, frame: Frame | None, passed: Sequence[Frame]) -> None:
        """Notes what the next frame looks like if it is like the last one, and that has passed as it was."""
        as_it_was = frame is not None and len(passed) == 1 and passed[0] is frame and self._reader.between
        self._pattern = pattern_of(passed[0].raw) if as_it_was else None

    def _is_slow(self) -> bool:
        return any([check.slow for check in self._checks])

    def sink(self, write: Sink, otherwise: Sink) -> Sink:
        """Returns what takes the bytes of a stream as they arrive: every token comes here.

        Whole frames that differ from the one before in their text alone say nothing to any stage and are written as
        they are: neither an error nor the end of an answer nor its usage.

        Args:
            write: Sends bytes to the client.
            otherwise: Takes all other bytes, to `feed` them.
        """
        if not self._may_skim:
            return otherwise if self._taker is None or self._kept is not None else self._taking(write, otherwise)
        counter, skim, kept = self._counter, self._skim, self._kept
        parts: list[bytes] = [] if kept is None else kept.parts
        room = _BATCH  # in them, until they are folded
        # Of the pattern in force, at hand since attributes cost every token more.
        prefix = suffix = b""
        around = _NO_PATTERN

        def take(data: bytes) -> Drain:
            text = data.removeprefix(prefix).removesuffix(suffix)  # half the time of asking for both first
            if len(data) - len(text) != around or _QUOTE in text:
                return take_other(data)
            if counter is not None:
                counter.chunks += 1
            if kept is not None:
                nonlocal room
                parts.append(data)
                room -= 1
                if not room:
                    room = kept.fold()
            if skim is not None:
                skim(data, 1)
            return write(data)

        def take_other(data: bytes) -> Drain:
            nonlocal prefix, suffix, around
            like = self._skimmed(data)
            if like is None:
                around = _NO_PATTERN
                return otherwise(data)
            prefix, suffix, around = like.prefix, like.suffix, like.begin + like.end
            return write(data)

        return take

    def _taking(self, write: Sink, otherwise: Sink) -> Sink:
        """Does what `sink` does where a stage takes frames by their bytes."""
        counters, (taker, *others) = self._textual[: self._taker], self._textual[self._taker :]
        reader, counter = self._reader, counters[0] if counters else None

        def sink(data: bytes) -> Drain:
            take = taker.take
            passed = take(data) if take is not None and reader.between else None
            if passed is None:
                return otherwise(data)
            if counter is not None:
                counter.chunks += 1
            if not passed:
                return None
            if not others:
                return write(data)
            passed = _through(others, passed)
            return write(_encoded(passed)) if passed else None

        return sink

    def _skimmed(self, data: bytes) -> FramePattern | None:
        """Tells the stages of frames that are all like the one before, and returns their pattern; None for others."""
        like = self._pattern
        if like is None or not data.startswith(like.prefix) or not data.endswith(like.suffix):
            return None
        frames = like.count(data)
        if not frames:
            return None
        if self._counter is not None:
            self._counter.chunks += frames
        if self._kept is not None:
            self._kept.add(data)
        if self._skim is not None:
            self._skim(data, frames)
        return like

    def finish(self) -> bytes:
        """Ends the stream; returns the bytes that are left."""
        frames = () if self.over else self._reader.finish()
        if not self._wants_half:
            frames = [frame for frame in frames if not _is_half(frame)]
        if frames and self._kept is not None:
            self._kept.add(BLANK_LINE)  # which the last of them lacks
        for stage in self._stages:
            passed = _each(stage, frames) if frames else ()
            frames = (*passed, *stage.finish())
        return _encoded(frames)


def _is_half(frame: Frame) -> bool:
    """Returns whether a stream's last frame, which lacks its end, lacks more: it is neither a chunk nor `[DONE]`."""
    data = frame.data()
    return data is None or not (is_done(data) or frame.readable())


def _through(stages: Iterable[Stage], passed: Sequence[Frame]) -> Sequence[Frame]:
    """Returns what goes on behind stages for the frames that come."""
    for stage in stages:
        if not passed:
            break
        passed = stage.feed(passed[0]) if len(passed) == 1 else _each(stage, passed)
    return passed


def _encoded(frames: Sequence[Frame]) -> bytes:
    if len(frames) == 1:
        return frames[0].raw or frames[0].encoded()
    return b"".join([frame.encoded() for frame in frames])


def _each(stage: Stage, frames: Iterable[Frame]) -> list[Frame]:
    return [passed for frame in frames for passed in stage.feed(frame)]
