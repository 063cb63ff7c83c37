"""What comes out of a line of stages, however a stream is cut and whatever it looks like, and what is kept of it."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.guard import GuardConfig
from serve.dialects.api import Translate
from serve.dialects.dialect import Identity
from serve.dialects.messages.request import MessagesMemo
from serve.dialects.messages.stream import StreamEncoder
from serve.guard.core import Guard
from serve.guard.plain import PlainAnswer
from serve.guard.response import GuardedStream
from serve.http1.sse import encode_frame
from serve.limits.answer_meter import Meter
from serve.limits.usage import Usage
from serve.load.live_load import LastFrames
from serve.stream.ending import End
from serve.stream.frame import Frame
from serve.stream.line import PASS, Check, Kept, Line, Stage, ignore
from serve.stream.stages import Rename, Without

DONE = b"data: [DONE]\n\n"
STOP = b'data: {"id":"c","model":"served","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def frame(end: str = "\n\n", **members: object) -> bytes:
    return f"data: {json.dumps(members, separators=(',', ':'))}{end}".encode()


def chunk(text: str, end: str = "\n\n", **members: object) -> bytes:
    return frame(end, id="c", model="served", choices=[{"index": 0, "delta": {"content": text}}], **members)


USAGE = frame(id="c", model="served", choices=[], usage={"prompt_tokens": 12, "completion_tokens": 7})
ERROR = frame(error={"message": "out of memory"})
COMMENT = b": still here\n\n"
PIECES = {
    "chunks": chunk("a") + chunk("b"),
    "text that imitates": chunk('"choices":[],"usage":{"prompt_tokens":9} \n\ndata: [DONE]\n\n {"error": 1}'),
    "usage with choices": chunk("c", usage={"prompt_tokens": 3}),
    "usage": USAGE,
    "comment": COMMENT,
    "other line ends": chunk("d", end="\r\n\r\n"),
    "stop": STOP,
    "end": DONE,
    "error": ERROR,
}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Returns the data in parts: at its frames, and at some places more."""
    ends = [at + 2 for at in range(len(data)) if data.startswith(b"\n\n", at)]
    edges = sorted({0, *ends[:: 1 + len(places) % 2], *(place % len(data) for place in places), len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


class Looking(Stage):
    """Lets everything pass, and must see every frame; a line leaves stages out that have no `feed` of their own."""

    def feed(self, frame: Frame) -> Sequence[Frame]:
        return (frame,)


def through(parts: list[bytes], *stages: Stage) -> bytes:
    """What a client gets that is fed from the event loop."""
    line = Line(stages)
    written: list[bytes] = []
    take = line.sink(written.append, lambda part: written.append(line.feed(part)))
    for part in parts:
        if not line.over:
            take(part)
    return b"".join(written) + line.finish()


STREAMS = st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=8)
PLACES = st.lists(st.integers(0, 2000), max_size=6)


@given(STREAMS, PLACES)
def test_a_frame_that_is_passed_by_would_have_changed_nothing(names: list[str], places: list[int]) -> None:
    parts = cut(b"".join(PIECES[name] for name in names), places)
    looked, skimmed = Meter("p", False), Meter("p", False)
    end, seen = End(), End()
    assert through(parts, skimmed, Without(usage=True), seen) == through(
        parts, looked, Looking(), Without(usage=True), end
    )
    assert (skimmed.chunks, skimmed.usage) == (looked.chunks, looked.usage)
    assert (seen.done, str(seen.failure)) == (end.done, str(end.failure))


@given(STREAMS, PLACES, PLACES)
def test_where_a_stream_is_cut_changes_nothing(names: list[str], one: list[int], other: list[int]) -> None:
    stream = b"".join(PIECES[name] for name in names)
    meters = Meter("p", False), Meter("p", False)
    ends = End(), End()
    assert through(cut(stream, one), meters[0], Without(usage=True), ends[0]) == through(
        cut(stream, other), meters[1], Without(usage=True), ends[1]
    )
    assert (meters[0].chunks, meters[0].usage) == (meters[1].chunks, meters[1].usage)
    assert (ends[0].done, str(ends[0].failure)) == (ends[1].done, str(ends[1].failure))


def test_every_chunk_is_counted_and_the_usage_taken_out() -> None:
    meter, end = Meter("p", False), End()
    said = [*map(chunk, "abcdef"), STOP]
    assert through([*said, USAGE, DONE], meter, Without(usage=True), end) == b"".join(said) + DONE
    assert meter.usage == Usage(12, 0, 7)
    assert meter.chunks == 7
    assert end.done


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_a_frame_is_metered_whatever_its_lines_end_with(end: str) -> None:
    meter = Meter("p", False)
    usage = USAGE.decode().replace("\n", end).encode()
    done = DONE.decode().replace("\n", end).encode()
    sent = through([chunk("a", 2 * end), STOP, usage, done], meter, Without(usage=True), End())
    assert sent == chunk("a", 2 * end) + STOP + done
    assert meter.usage == Usage(12, 0, 7)


def test_chunks_after_an_error_do_not_reach_the_client() -> None:
    parts = [chunk("a"), chunk("b"), ERROR, chunk("c"), chunk("d"), DONE]
    assert through(parts, Meter("p", False), end := End()) == chunk("a") + chunk("b") + ERROR
    assert end.told


@pytest.mark.parametrize("renames", [False, True])
def test_the_last_frames_are_kept_as_the_engine_sent_them(renames: bool) -> None:
    parts = [*map(chunk, "abcdef"), STOP, USAGE, DONE]
    kept = LastFrames()
    sent = through(parts, kept, Meter("p", False), Without(usage=True), *[Rename("served", "own")] * renames, End())
    assert list(kept.last) == parts[-4:]
    assert sent == b"".join([*parts[:-2], DONE]).replace(*[b'"served"', b'"own"' if renames else b'"served"'])


class Twice(Stage):
    """Sends every frame twice, and one more at the end."""

    def feed(self, frame: Frame) -> Sequence[Frame]:
        return frame, frame

    def finish(self) -> Sequence[Frame]:
        return (Frame(b"last\n\n"),)


def test_stages_see_what_the_one_before_them_returns() -> None:
    meter = Meter("p", False)
    assert through([chunk("a"), chunk("b")], Twice(), meter) == 2 * chunk("a") + 2 * chunk("b") + b"last\n\n"
    assert meter.chunks == 4


def test_a_stage_that_is_over_gets_no_more() -> None:
    class First(Check):
        def feed(self, frame: Frame) -> Sequence[Frame]:
            assert not self.over
            self.over = True
            return (frame,)

    line = Line([First()])
    assert line.feed(chunk("a") + chunk("b")) == chunk("a")
    assert line.over


def test_a_whole_answer_is_measured_and_stays_as_it_is() -> None:
    answer = json.dumps({"choices": [{"message": {"content": "x" * 200}}], "usage": {"prompt_tokens": 12}}).encode()
    meter = Meter("p", False)
    meter.answered(200)
    assert LastFrames().whole(meter.whole(answer)) == answer
    assert meter.usage == Usage(12, 0, 0)


@given(st.lists(st.sampled_from(["chunks", "usage", "error", "end", "comment"]), max_size=3), st.integers(0, 3))
def test_many_frames_in_one_read_are_seen_one_by_one_unless_all_are_alike(names: list[str], alike: int) -> None:
    many = b"".join(map(chunk, "abc")) * alike
    parts = [chunk("a"), b"".join([many, *(PIECES[name] for name in names), many])]
    looked, skimmed = Meter("p", False), Meter("p", False)
    end, seen = End(), End()
    assert through(parts, skimmed, Without(usage=True), seen) == through(
        parts, looked, Looking(), Without(usage=True), end
    )
    assert (skimmed.chunks, skimmed.usage, seen.done, str(seen.failure)) == (
        looked.chunks, looked.usage, end.done, str(end.failure),
    )  # fmt: skip


@pytest.mark.parametrize("hidden", [ERROR, USAGE, DONE])
@pytest.mark.parametrize("line_end", ["\r", "\r\n"])
def test_nothing_hides_behind_another_line_end_in_what_looks_like_a_chunk(hidden: bytes, line_end: str) -> None:
    end, meter = End(), Meter("p", False)
    odd = chunk("b")[:-2] + 2 * line_end.encode() + hidden
    through([*map(chunk, "acd"), *[STOP] * (hidden == DONE), odd], meter, end)
    assert (end.told, end.done, meter.usage is not None) == (hidden == ERROR, hidden == DONE, hidden == USAGE)


def test_a_stage_that_only_lets_frames_pass_keeps_no_chunk_from_passing_at_once() -> None:
    line, out = Line([PASS, End(), PASS]), list[bytes]()
    for text in "abc":  # two of a kind tell how they differ
        line.feed(chunk(text))
    take = line.sink(out.append, otherwise=lambda _: pytest.fail("it was read"))  # type: ignore[arg-type]
    take(chunk("d"))
    assert out == [chunk("d")]


class Ignoring(Stage):
    """Keeps the frames that it is asked about, which need not be more of the same text."""

    skim = staticmethod(ignore)

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def feed(self, frame: Frame) -> Sequence[Frame]:
        self.seen.append(frame.raw)
        return (frame,)


class Parsing(Stage):
    """Reads every frame, so that the line learns how they differ."""

    def feed(self, frame: Frame) -> Sequence[Frame]:
        if frame.template is None:
            frame.readable()
        return (frame,)


def test_who_ignores_more_of_the_same_text_is_not_asked_about_it_unless_others_may_have_changed_it() -> None:
    first, second, behind = Ignoring(), Ignoring(), Ignoring()
    line = Line([first, Meter("p", False), second, Parsing(), behind])
    said = [*map(chunk, "abcd"), STOP]
    assert b"".join(map(line.feed, said)) == b"".join(said)
    assert first.seen == second.seen == [said[0], said[1], STOP]
    assert behind.seen == said


class Judge(Check):
    """Lets everything pass that it gets.

    Args:
        exact: As of `Stage`.
    """

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact

    def feed(self, frame: Frame) -> Sequence[Frame]:
        return (frame,)


@pytest.mark.parametrize("rest", [chunk("a")[:-9], b"data: [DON", b"dat", b"data: ", b": still he"])
@pytest.mark.parametrize("exact", [True, False])
def test_only_a_check_that_ends_the_stream_itself_does_without_a_frame_that_was_cut(rest: bytes, exact: bool) -> None:
    line = Line([Judge(exact=exact)])
    assert line.feed(rest) == b""
    assert line.finish().startswith(rest) is exact


STAGES: dict[str, Callable[[], Sequence[Stage]]] = {
    "plain": lambda: (End(),),
    "guarded": lambda: (GuardedStream(Guard(GuardConfig(), {})),),
    "translated": lambda: (End(), translation()),
    "guarded and translated": lambda: (GuardedStream(Guard(GuardConfig(), {})), translation()),
}


def translation() -> Translate:
    return Translate(StreamEncoder(MessagesMemo(9), Identity("r", "m")), "r")


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("line_ends", [2, 1, 0])
@pytest.mark.parametrize("last", [[STOP], [STOP, USAGE], [STOP, USAGE, DONE]])
def test_the_last_frame_counts_whatever_ends_it(
    stages: Callable[[], Sequence[Stage]], line_end: str, line_ends: int, last: list[bytes]
) -> None:
    stream = b"".join([chunk("a"), chunk("b"), *last]).decode().rstrip("\n") + line_ends * "\n"
    meter = Meter("p", False)
    sent = through([stream.replace("\n", line_end).encode()], meter, *(used := stages()))
    assert meter.usage == (Usage(12, 0, 7) if USAGE in last else None)
    for stage in used:
        if isinstance(stage, End):
            assert stage.complete
        elif isinstance(stage, Translate):
            sent += stage.close(())
            assert b"message_stop" in sent
        elif isinstance(stage, GuardedStream):
            stage.finish_attempt()
            assert (stage.failure, [*map(Frame.encoded, stage.last)]) == (None, [])
    assert b"b" in sent


TEXTS = st.sampled_from(["a", " b", '"', "\\", "好", "🙂", "\n", "{", 'x","y'])
KEPT_PIECES = st.tuples(st.sampled_from(["content", "reasoning", "text"]), st.lists(TEXTS, min_size=1, max_size=40))


def kept_chunk(field: str, text: str) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    choice |= {"text": text} if field == "text" else {"delta": {field: text}}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def keep(frames: list[bytes], kept: Kept, joins: int) -> bytes:
    """What a client gets of frames that come so many at once."""
    line = Line((End(waits=True),), kept)
    out: list[bytes] = []
    take = line.sink(out.append, lambda data: out.append(line.feed(data)))
    for start in range(0, len(frames), joins):
        take(b"".join(frames[start : start + joins]))
    return b"".join(out)


@given(runs=st.lists(KEPT_PIECES, max_size=6), repeats=st.integers(1, 30), joins=st.integers(1, 3))
def test_what_went_out_can_be_read(runs: list[tuple[str, list[str]]], repeats: int, joins: int) -> None:
    frames = [kept_chunk(field, text) for field, texts in runs for text in texts * repeats]
    kept = Kept()
    assert keep(frames, kept, joins) == b"".join(frames)
    answer = PlainAnswer()
    answer.read(kept.parts)
    said = {"content": "", "reasoning": ""}
    for field, texts in runs:
        said["content" if field == "text" else field] += "".join(texts * repeats)
    assert (answer.had.content, answer.had.reasoning) == (said["content"], said["reasoning"])


def test_a_long_stream_shrinks_to_its_text() -> None:
    for line_ends in (b"\n\n", b"\r\n\r\n"):  # the latter is read frame by frame
        kept = Kept()
        keep([kept_chunk("content", f" {n}").replace(b"\n\n", line_ends) for n in range(5000)], kept, 1)
        answer = PlainAnswer()
        answer.read(kept.parts)
        assert answer.had.content == "".join([f" {n}" for n in range(5000)])
        assert line_ends != b"\n\n" or sum(map(len, kept.parts)) < 100_000


def test_of_a_stream_that_is_too_long_nothing_is_kept() -> None:
    kept = Kept(limit_bytes=10_000)
    keep([kept_chunk("content", "x" * 50) for _ in range(5000)], kept, 1)
    assert kept.lost
    assert len(kept.parts) <= 512


def test_what_came_after_an_engine_gave_up_did_not_go_out() -> None:
    gives_up = encode_frame({"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "abort"}]})
    answer = PlainAnswer()
    answer.read([kept_chunk("content", "a"), gives_up, kept_chunk("content", "b")])
    assert (answer.had.content, answer.finished) == ("a", False)
