"""An engine's bytes through the guard: the same for the client however they arrive, and never anything but SSE."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import SentTo, call, calls, calls_of, chunk, chunks_of, read, tools_request
from support.guard_stack import chunks_in

from lab.sim import FAULTS, SimSettings
from policies import Candidate
from serve.config.guard import GuardConfig
from serve.errors import GatewayError, encode_json
from serve.guard.core import Guard, GuardState, WholeGuard
from serve.guard.response import GuardedStream, StreamedResponse, WholeResponse
from serve.http1.sse import encode_frame
from serve.http1.turns import LONG_BYTES, LONG_HELD_BYTES, LONG_RAW_BYTES
from serve.limits.answer_meter import Meter
from serve.proxy.attempts import Attempt
from serve.proxy.relay import PIECE_BYTES, send_stream
from serve.stream.line import Line

DONE = b"data: [DONE]\n\n"
TEXT_FAULTS = sorted(name for name, fault in FAULTS.items() if fault.edit)
REQUEST = tools_request(3, tool_choice="required")


class EngineResponse:
    """An engine's response in the given pieces."""

    status, headers, is_stream = 200, {"content-type": "text/event-stream"}, True

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._rest = iter(pieces)
        self.first = next(self._rest)

    async def rest(self) -> AsyncIterator[bytes]:
        for piece in self._rest:
            yield piece


class WholeBody:
    """An engine's response that does not stream."""

    status, headers, is_stream = 200, {"content-type": "application/json"}, False

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def body(self, limit_bytes: int) -> bytes:
        assert len(self._body) <= limit_bytes
        return self._body


def attempt(response: Any) -> Attempt:
    return Attempt(Candidate("p", opt_out=False, speculative=False), response)


@cache
def frames(fault: str | None) -> bytes:
    pool = SimSettings(num_speculative_tokens=3, faults={fault: 1.0} if fault else {})
    return b"".join(map(encode_frame, chunks_of(REQUEST, pool))) + DONE


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


def sent(attempts: Sequence[Iterable[bytes]], settings: GuardConfig | None = None, body: Any = REQUEST) -> bytes:
    """What a client gets of attempts that arrive in such pieces."""

    async def run() -> bytes:
        exchange = SentTo()
        response = StreamedResponse(exchange, Guard(settings or GuardConfig(), body))  # type: ignore[arg-type]
        for number, pieces in enumerate(attempts):
            if number:
                response.guard.restart("standard")
            await response.attempt(attempt(EngineResponse(pieces)))
            if response.guard.state is not GuardState.RERUN:
                break
        try:
            await response.finish()
        except GatewayError as error:
            exchange.sent += encode_frame(error.to_body())
        return exchange.sent

    return asyncio.run(run())


PLACES = st.lists(st.integers(0, 10_000), max_size=30)


@given(st.sampled_from([None, *TEXT_FAULTS]), PLACES, PLACES)
def test_the_client_has_the_same_however_the_bytes_arrive(fault: str | None, one: list[int], two: list[int]) -> None:
    first, second = frames(fault), frames(None)
    got = sent([cut(first, one), cut(second, two)])
    assert got == sent([[first], [second]])
    assert got.endswith(DONE)
    assert calls_of(read(chunks_in(got)[:-1])) == calls_of(read(chunks_of(REQUEST, SimSettings())))


@given(st.sampled_from(TEXT_FAULTS), st.integers(1, 10_000))
def test_a_first_attempt_that_breaks_off_anywhere_is_made_whole(fault: str, place: int) -> None:
    first = frames(fault)
    got = sent([[first[: place % len(first) or 1]], [frames(None)]])
    assert calls_of(read(chunks_in(got)[:-1])) == calls_of(read(chunks_of(REQUEST, SimSettings())))


BROKEN_CALL = encode_frame(chunk(calls(call(0, "get_weather", '{"city": '))))


@pytest.mark.parametrize(
    "hidden",
    [
        b"\xef\xbb\xbf" + BROKEN_CALL,
        b": ping\r" + BROKEN_CALL,
        b"event: x\rid: 1\r" + BROKEN_CALL,
        BROKEN_CALL.replace(b"\n", b"\r"),
    ],
)
def test_a_call_that_hides_behind_a_line_end_or_a_mark_is_guarded(hidden: bytes) -> None:
    got = sent([[hidden + encode_frame(chunk({}, "tool_calls")) + DONE], [frames(None)]])
    assert BROKEN_CALL[6:-2] not in got
    assert calls_of(read(chunks_in(got)[:-1])) == calls_of(read(chunks_of(REQUEST, SimSettings())))


@pytest.mark.parametrize("odd", [b"data\n\n", b"DATA: {}\n\n", b"retry: 1\n\n", b" data: {}\n\n"])
def test_of_what_is_no_data_only_comments_pass_the_guard(odd: bytes) -> None:
    got = sent([[b": ping\n\n" + odd + frames(None)]])
    assert got.startswith(b": ping\n\ndata: {")


# What a text or arguments may come in: words, and what begins markup, calls and code, or ends a string.
PIECES = st.lists(
    st.sampled_from(
        [" word", "天气", "\n", "`", "```\n", "<tool_call>", "</tool_call>", "<", "{", '{"name": "get_weather",']
    )
    | st.sampled_from(["[", "]", "]<]minimax[>[", "◁", "\ufffd", '"', "\\", "\t", "}", '{"city": "', '", "days": 1}']),
    min_size=3,
    max_size=12,
)


@pytest.mark.parametrize("name", ["content", "reasoning", "arguments"])
@given(pieces=PIECES, hasty=st.booleans(), observes=st.booleans())
def test_what_is_judged_later_goes_out_when_it_would_have_gone_at_once(
    name: str, pieces: list[str], hasty: bool, observes: bool
) -> None:
    settings = GuardConfig(mode="observe" if observes else "heal")
    at_once, later, fed = (Guard(settings, tools_request(), hasty=hasty) for _ in range(3))
    stream, slower = GuardedStream(later), GuardedStream(fed)
    meters = Meter("p", False), Meter("p", False)
    line, others = Line([meters[0], stream]), Line([meters[1], slower])
    got: list[bytes] = []
    take = line.sink(got.append, lambda data: got.append(line.feed(data)))
    deltas: list[dict[str, Any]] = [{name: piece} for piece in pieces]
    if name == "arguments":
        more = ({"index": 0, "function": {"arguments": piece}} for piece in pieces)
        deltas = [calls(call(0, "get_weather", '{"city": "')), *map(calls, more)]
    for each in [chunk({"role": "assistant"}), *map(chunk, deltas), chunk({}, "stop")]:
        take(encode_frame(each))
        assert b"".join(got) == others.feed(encode_frame(each))
        assert chunks_in(b"".join(got)) == at_once.feed(each)
        assert stream.over is slower.over is (at_once.over or at_once.state is not GuardState.OPEN)
        got.clear()
        if stream.over:
            break
    stream.finish_attempt(), slower.finish_attempt()
    assert meters[0].chunks == meters[1].chunks
    assert stream.ending == slower.ending == at_once.finish()
    assert later.verdicts == fed.verdicts == at_once.verdicts
    assert later.sent().text_sent(name) == at_once.sent().text_sent(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
)
DELTAS = st.dictionaries(st.sampled_from(["role", "content", "reasoning", "tool_calls"]), JSON, max_size=3)
CHOICES = st.fixed_dictionaries(
    {"index": JSON, "delta": DELTAS | JSON}, optional={"finish_reason": st.sampled_from(["stop", None, 3])}
)
CHUNKS = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICES, max_size=2) | JSON, "usage": JSON, "error": JSON}
)


@given(
    st.lists(CHUNKS.map(encode_frame) | st.binary(max_size=12).map(lambda data: data + b"\n\n"), min_size=1, max_size=6)
)
def test_whatever_an_engine_sends_the_client_gets_frames_that_end_in_done_or_an_error(stream: list[bytes]) -> None:
    got = sent([stream, [frames(None)]])
    last = [frame for frame in got.split(b"\n\n") if frame][-1]
    assert last == DONE.strip() or "error" in json.loads(last.removeprefix(b"data: "))


def test_what_a_guard_holds_back_is_bounded_and_beyond_it_the_request_runs_elsewhere() -> None:
    opening = encode_frame(chunk(calls(call(0, "get_weather", '{"city": "'))))
    more = encode_frame(chunk(calls({"index": 0, "function": {"arguments": "x" * 1_000}})))
    endless = [opening, *[more] * 200]
    small = GuardConfig(max_held_bytes=65_536)
    healed = read(chunks_in(sent([endless, [frames(None)]], small))[:-1])
    assert calls_of(healed) == calls_of(read(chunks_of(REQUEST, SimSettings())))
    error = chunks_in(sent([endless, endless], small))[-1]["error"]
    assert (error["code"], "wait for a check" in error["message"]) == ("engine_error", True)


def test_an_engine_that_goes_on_in_space_behind_a_document_is_left() -> None:
    body = {"messages": [], "response_format": {"type": "json_object"}}
    space = [encode_frame(chunk({"content": "\n" * 40}))] * 1_000
    read_on: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        for piece in [encode_frame(chunk({"content": '{"a": 1}'})), *space]:
            read_on.append(piece)
            yield piece

    answer = read(chunks_in(sent([pieces()], body=body))[:-1])
    assert (answer["content"].rstrip(), answer["finish"]) == ('{"a": 1}', ["stop"])
    assert len(read_on) < 20


def test_a_frame_without_end_is_the_engines_fault_and_runs_elsewhere() -> None:
    endless = [b'data: {"choices":[{"index":0,"delta":{"content":"', *[b"x" * 10_000] * 200]
    assert calls_of(read(chunks_in(sent([endless, [frames(None)]]))[:-1]))
    assert chunks_in(sent([endless, endless]))[-1]["error"]["code"] == "engine_error"


def test_a_long_read_is_worked_off_in_pieces_between_which_others_have_their_turn() -> None:
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    class Pieces:
        over = slow = quick = False

        def __init__(self) -> None:
            self.sizes: list[int] = []

        def feed(self, data: bytes) -> bytes:
            self.sizes.append(len(data))
            turns.append(1)
            return data

        def finish(self) -> bytes:
            return b""

    async def run() -> None:
        busy = asyncio.create_task(other())
        exchange, through = SentTo(), Pieces()
        tiny = b"data: {}\n\n" * 20_000
        await send_stream(exchange, EngineResponse([tiny, tiny]), through)  # type: ignore[arg-type]
        busy.cancel()
        assert exchange.sent == 2 * tiny
        assert max(through.sizes) <= PIECE_BYTES
        assert "111" not in "".join(map(str, turns)), "never more than the end of one read and the start of the next"

    asyncio.run(run())


class Watched(Line):
    """Knows of each read how much was fed before it, and whether the event loop itself worked it off."""

    def __init__(self, guard: Guard) -> None:
        self.stream = GuardedStream(guard)
        super().__init__([self.stream])
        self.fed_bytes = 0
        self.reads: list[tuple[int, bool]] = []

    def feed(self, data: bytes) -> bytes:
        self.reads.append((self.fed_bytes, threading.current_thread() is threading.main_thread()))
        self.fed_bytes += len(data)
        return super().feed(data)


def test_what_follows_a_long_call_is_worked_off_beside_the_event_loop_and_comes_out_the_same() -> None:
    text = "the quick brown fox " * (LONG_HELD_BYTES // 10)
    pieces = [text[start : start + 4_000] for start in range(0, len(text), 4_000)]
    more = [chunk(calls({"index": 0, "function": {"arguments": piece}})) for piece in [*pieces, '"}']]
    opening = chunk(calls(call(0, "get_weather", '{"city": "')))
    stream = [encode_frame(each) for each in [opening, *more, chunk({}, "tool_calls")]]
    through = Watched(Guard(GuardConfig(schema="warn"), REQUEST))
    exchange = SentTo()
    asyncio.run(send_stream(exchange, EngineResponse(stream), through))  # type: ignore[arg-type]
    assert {on_loop for fed, on_loop in through.reads if fed < LONG_HELD_BYTES} == {True}
    assert {on_loop for fed, on_loop in through.reads if fed >= 2 * LONG_HELD_BYTES} == {False}
    through.stream.finish_attempt()
    assert through.stream.ending == []
    assert calls_of(read(chunks_in(exchange.sent))) == [("get_weather", {"city": text})]
    assert max(exchange.parts) <= PIECE_BYTES


def test_a_frame_that_is_long_before_it_ends_is_read_beside_the_event_loop() -> None:
    entries = [{"index": 0, "function": {"arguments": " "}}] * 5_000
    frame = encode_frame(chunk({"tool_calls": entries}))
    through = Watched(Guard(GuardConfig(), REQUEST))
    asyncio.run(send_stream(SentTo(), EngineResponse([frame]), through))  # type: ignore[arg-type]
    assert through.reads[0][1]
    assert not through.reads[-1][1]


def test_a_long_stream_ends_beside_the_event_loop_and_so_it_is_given_up() -> None:
    threads: list[threading.Thread] = []

    class Ended(Guard):
        def finish(self, *, done: bool = True) -> list[dict[str, Any]]:
            threads.append(threading.current_thread())
            return super().finish(done=done)

        def give_up(self) -> list[dict[str, Any]]:
            threads.append(threading.current_thread())
            return super().give_up()

    async def run(words: int) -> None:
        guard = Ended(GuardConfig(), REQUEST)
        response = StreamedResponse(SentTo(), guard)  # type: ignore[arg-type]
        word = encode_frame(chunk({"content": "word "}))
        await response.attempt(attempt(EngineResponse([word] * words)))
        with pytest.raises(GatewayError):
            await response.finish()

    asyncio.run(run(10))
    asyncio.run(run(LONG_RAW_BYTES // len(encode_frame(chunk({"content": "word "}))) + 1))
    assert [thread is threading.main_thread() for thread in threads] == [True, True, False, False]


def test_a_long_whole_answer_is_judged_beside_the_event_loop() -> None:
    threads = []

    class Judged(WholeGuard):
        def judge(self, answer: dict[str, Any]) -> Any:
            threads.append(threading.current_thread())
            return (yield from super().judge(answer))

    async def judged(length: int) -> bytes:
        message = {"role": "assistant", "content": "x " * length}
        body = encode_json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        exchange = SentTo()
        response = WholeResponse(exchange, Judged(GuardConfig(), tools_request(3)))  # type: ignore[arg-type]
        await response.attempt(attempt(WholeBody(body)))
        await response.finish()
        assert exchange.sent == body
        return body

    asyncio.run(judged(10))
    asyncio.run(judged(LONG_BYTES))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


SAID, STOPPED = encode_frame(chunk({"content": "so"})), encode_frame(chunk({}, "stop"))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("done", [b"", DONE])
def test_of_several_answers_one_that_never_began_is_missed_unless_the_engine_says_done(
    several: bool, done: bytes
) -> None:
    body = {"messages": [], "n": 2 if several else 1}
    got = sent([[SAID, STOPPED + done]] * 2, body=body)
    assert got.endswith(DONE) is (bool(done) or not several)
    assert (b'"error"' in got) is (several and not done)


def test_nothing_that_comes_behind_done_belongs_to_the_answer() -> None:
    late = encode_frame(chunk({"content": " late"}))
    got = sent([[SAID, SAID, STOPPED, DONE, late + DONE]], body={"messages": []})
    assert got == SAID + SAID + STOPPED + DONE
    got = sent([[SAID, DONE, late + STOPPED + DONE]] * 2, body={"messages": []})
    assert b"late" not in got
    assert b'"error"' in got


class Faulty(Guard):
    """Fails at the chunk of a number, or at the end of the stream."""

    def __init__(self, at: int) -> None:
        super().__init__(GuardConfig(unjudged="pass"), {"messages": []})
        self._left = at

    def feed(self, chunk: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("a fault of the guard")
        return super().feed(chunk)

    def finish(self, *, done: bool = True) -> Any:
        raise RuntimeError("a fault of the guard")


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(
    ("frames", "complete"),
    [
        ([SAID, SAID], False),
        ([SAID, SAID, DONE], False),
        ([SAID, SAID, b'data: {"error":{"message":"died"}}\n\n'], False),
        ([SAID, SAID, STOPPED], True),
        ([SAID, SAID, STOPPED, DONE], True),
    ],
)
def test_what_a_guard_that_failed_lets_pass_is_complete_only_with_its_finish_reason(
    at: int, frames: list[bytes], complete: bool
) -> None:
    async def run() -> bytes:
        exchange = SentTo()
        response = StreamedResponse(exchange, Faulty(at))  # type: ignore[arg-type]
        await response.attempt(attempt(EngineResponse(frames)))
        try:
            await response.finish()
        except GatewayError as error:
            exchange.sent += encode_frame(error.to_body())
        return exchange.sent

    got = asyncio.run(run())
    assert got.endswith(DONE) is complete
    assert got.count(b'"error"') == (not complete)
    assert got.startswith(b"".join(frames[: 2 + complete]))
