"""An engine's response on its way through the guard: streamed frame by frame, or whole at once.

`GuardedStream` takes one attempt's bytes and returns those that may go out; `StreamedResponse` and `WholeResponse` make
one response to the client of one or several attempts; `ObservedResponse` is judged without being touched. What the
guard itself fails to judge (`guard_fault`) passes or is an error, as `unjudged` says.
"""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from serve.config.pool import ModelConfig
from serve.errors import EngineError, GatewayError, IntegrityError, encode_json
from serve.guard.core import GUARD_ERROR, Guard, GuardState, WholeGuard
from serve.guard.transcript import NULL_TRANSCRIPT, AnyTranscript
from serve.http1.message import RawHeaders
from serve.http1.sse import DONE, MAX_FRAME_BYTES, decode_chunk, encode_frame, is_comment, is_done
from serve.http1.turns import LONG_BYTES, LONG_HELD_BYTES, LONG_RAW_BYTES, beside, in_slices
from serve.proxy.attempts import Attempt
from serve.proxy.exchange import Exchange
from serve.proxy.headers import response_headers
from serve.proxy.relay import line_of, send_stream
from serve.stream.ending import INCOMPLETE, End, error_around, error_in
from serve.stream.frame import Frame, FrameTemplate
from serve.stream.line import Check
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.guard")

_MOST_AT_ONCE = 512  # texts, before the guard gets them
_OPEN = GuardState.OPEN  # compared for every token, and an attribute of an enum is slow to look up


def guard_fault(guard: Guard, attempt: int) -> IntegrityError:
    """Ends an answer whose attempt of a number (0 for the first) the guard failed to judge. Called as `log_fault` is.

    It calls nothing of the guard, since whatever failed once may fail again, and returns the client's error.
    """
    log_fault(log, "the guard failed")
    guard.verdicts[attempt:] = [GUARD_ERROR]
    guard.state = GuardState.FAILED
    return unjudged_error()


def unjudged_error() -> IntegrityError:
    """Returns the client's error for an answer that the guard failed to judge."""
    return IntegrityError("The gateway itself failed to check the model's answer, which may well be right.")


class GuardedStream(Check):
    """Guards one attempt's stream; the engine's own bytes go out wherever nothing had to change.

    Attributes:
        passing: True once the guard itself has failed and the rest passes as the engine sends it.
        slow: True if a check would hold up other requests: too much waits for it.
        ending: The chunks that end the client's stream, once the attempt is over and if it was the last.
        failure: The engine's fault, if that ended the attempt, or the guard's own.
        over: True if the rest of this attempt is of no use.
    """

    exact = False
    takes = True

    def __init__(self, guard: Guard) -> None:
        self.over = False
        self.slow = False
        self.passing = False
        self._done = False  # the engine has said so
        self._judging = True  # what comes
        self._end = End(several=guard.answers > 1, waits=True)  # of what passes
        self._finished = False  # all choices had ended before it did
        self._guard = guard
        self._number = len(guard.verdicts)
        self._most_held_bytes = guard.settings.max_held_bytes
        self.limit_bytes = min(MAX_FRAME_BYTES, self._most_held_bytes)
        self._long_held_bytes = 0 if guard.takes_long else LONG_HELD_BYTES
        self._held_bytes = 0
        self._fed_bytes = 0
        # As long as all that went out is the engine's own, the rest can follow should the guard fail.
        self._verbatim = not guard.verdicts and guard.settings.unjudged == "pass"
        self._waiting: list[Frame] = []
        self._run: list[str] = []  # texts of which the guard need not know yet: all went the way of the one before
        self._like: FrameTemplate | None = None  # of the run's frames
        self._breaks: Callable[[str], object]  # finds what ends it
        self._passes: bool  # its texts go out, and are not held
        self.ending: list[dict[str, Any]] = []
        self.failure: GatewayError | None = None

    @property
    def long(self) -> bool:
        """True if the end of the attempt may take longer than other requests should wait."""
        return self.slow or self._fed_bytes + self._run_bytes >= LONG_RAW_BYTES

    @property
    def _run_bytes(self) -> int:
        """The bytes of the run's frames, near enough."""
        return 0 if self._like is None else sum(map(len, self._run)) + len(self._run) * self._like.repeated

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frames that may go out now."""
        template, text = frame.template, frame.text
        if not self._judging:
            return self._pass(frame) if self.passing else ()
        passed: Sequence[Frame] = ()
        try:
            if (
                template is None
                or template is not self._like
                or self._breaks(text) is not None
                or len(self._run) == _MOST_AT_ONCE
            ):
                passed = self._judge(frame)
            else:
                self._run.append(text)
                if self._passes:
                    return (frame,)
                self._hold(frame, len(text))
        except EngineError as error:
            self.finish_attempt(error)
        except BaseException:  # noqa: BLE001 - logged, reported, and as configured the client's error
            self._fail()
            if self.passing:
                waiting, self._waiting = self._waiting, []
                passed = (*waiting, *self._pass(frame))
        return passed

    def _begin_run(self, like: FrameTemplate, breaks: Callable[[str], object], *, passes: bool) -> None:
        """Lets texts go the way of the one before, until one breaks the run."""
        match, run, add = like.match, self._run, self._run.append  # at hand since attributes cost every token more
        unnoticed_bytes = min(self._long_held_bytes, self._most_held_bytes)

        def take(data: bytes) -> Sequence[Frame] | None:
            text = match(data)
            if text is None or breaks(text) is not None or len(run) == _MOST_AT_ONCE:
                return None
            if passes:
                add(text)
                return (Frame(data, like, text),)
            held_bytes = self._held_bytes + len(text)
            if held_bytes >= unnoticed_bytes:
                return None
            self._held_bytes = held_bytes
            add(text)
            if self._verbatim:
                self._waiting.append(Frame(data, like, text))
            return ()

        self.take = take
        self._like, self._breaks, self._passes = like, breaks, passes

    def _judge(self, frame: Frame) -> Sequence[Frame]:
        """Feeds a frame to the guard, which has had all before it."""
        guard, template, text = self._guard, frame.template, frame.text
        passed: Sequence[Frame] = ()
        self._end_run()
        self._fed_bytes += len(frame.raw)
        if template is None or (ready := guard.feed_text(template.place, text)) is None:
            passed = self._parse(frame)
        elif ready and ready != text:
            passed = (frame.with_text(ready),)
            self._alter()
        else:
            if ready:
                passed = (frame,)
            else:
                self._hold(frame, len(text))
            if (breaks := guard.breaks(template.place)) is not None:
                self._begin_run(template, breaks, passes=bool(ready))
        if guard.over or (guard.state is not _OPEN and not guard.awaits_usage):
            self.over = True
        return passed

    def finish_attempt(self, failure: EngineError | None = None) -> None:
        """Ends the attempt, with the engine's fault if that ended the stream; does nothing if it is over already."""
        if self._guard.state is GuardState.OPEN:
            self.failure = failure
            self.over = True
            try:
                self._end_run()
                if failure is None or self._done:
                    self.ending = self._guard.finish(done=self._done)
                else:
                    self.ending = self._guard.broke(failure.message)
            except BaseException:  # noqa: BLE001 - logged, reported, and as configured the client's error
                self._fail()
        if self.passing and not (self._end.complete or self._finished):
            self.failure = failure or self._end.failure or EngineError(INCOMPLETE)
            self._guard.state = GuardState.FAILED

    @property
    def last(self) -> list[Frame]:
        """The frames that end the client's stream, but for its `[DONE]`."""
        return self._waiting if self.passing else [*map(Frame.of, self.ending)]

    def _end_run(self) -> None:
        """Tells the guard of the texts that have gone their way without it."""
        self._fed_bytes += self._run_bytes
        like, self._like, self.take = self._like, None, None
        if like is not None and self._run:
            run, self._run = self._run, []
            self._guard.feed_text(like.place, "".join(run))

    def _fail(self) -> None:
        """Ends the attempt because the guard itself failed, or lets it pass from there on, if it may and can."""
        failure = guard_fault(self._guard, self._number)
        if self._verbatim:
            self._guard.state = GuardState.DONE
            self.passing, self._judging = True, False
            self._finished = self._guard.finished
            for frame in self._waiting:
                self._end.feed(frame)
        else:
            self.over = True
            self.failure = failure

    def _pass(self, frame: Frame) -> Sequence[Frame]:
        """Returns a frame that is not judged, but no `[DONE]`: something may have to go out before that."""
        frames = () if self._is_hidden(frame.readable() or {}) else self._end.feed(frame)
        return [each for each in frames if not is_done(each.data() or b"")]

    def _is_hidden(self, chunk: Mapping[str, Any]) -> bool:
        """Returns whether a chunk only tells the usage, which the guard has asked for and not the client."""
        return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict) and not self._guard.wants_usage

    def _alter(self) -> None:
        """Notes that something went out that is not the engine's own."""
        self._verbatim = False
        self._waiting = []

    def _hold(self, frame: Frame, held_bytes: int) -> None:
        """Counts what waits for a check."""
        held_bytes += self._held_bytes
        self._held_bytes = held_bytes
        if self._verbatim:
            self._waiting.append(frame)
        if held_bytes >= self._long_held_bytes:
            self.slow = True
        if held_bytes > self._most_held_bytes:
            raise EngineError(f"The answer has more than {self._most_held_bytes} bytes that must wait for a check.")

    def _parse(self, frame: Frame) -> Sequence[Frame]:
        """Feeds a frame to the guard as parsed JSON."""
        if not frame.whole:
            raise EngineError(f"The engine sent an event of more than {self.limit_bytes} bytes.")
        data = frame.data()
        if (error := error_around(frame.raw)) is not None:
            raise error
        if data is None:  # a comment keeps the connection alive; what else is no data must not pass unseen
            return (frame,) if is_comment(frame.raw) else ()
        if is_done(data):
            self._done, self._judging = True, False
            return ()
        chunk = frame.parsed(data)
        if (error := error_in(chunk)) is not None:
            raise error
        allowed = self._guard.feed(chunk)
        if self._is_hidden(chunk):
            allowed = [each for each in allowed if each is not chunk]
        elif not allowed:
            self._hold(frame, len(frame.raw))
        if not allowed:
            return ()
        if len(allowed) > 1 or allowed[0] is not chunk:
            self._alter()
        return [frame if each is chunk else Frame(encode_frame(each), chunk=each) for each in allowed]


class StreamedResponse:
    """A stream to the client, made of one attempt or several; whatever is clean goes out as it arrives."""

    streamed = True

    def __init__(self, exchange: Exchange, guard: Guard, transcript: AnyTranscript = NULL_TRANSCRIPT) -> None:
        self.guard = guard
        self._exchange = exchange
        self._transcript = transcript
        self._stream: GuardedStream  # of the present attempt

    async def attempt(self, attempt: Attempt) -> None:
        """Feeds one engine's response to the guard; `guard.state` says what came of it."""
        response, transcript = attempt.response, self._transcript
        if not self._exchange.status:
            await self._exchange.start_stream(response.status, response_headers(response.headers))
        self._exchange.keep_alive_from_now()
        self._stream = stream = GuardedStream(self.guard)
        line = line_of(attempt, self._exchange, transcript.attempt(), stream, transcript.client)
        try:
            await send_stream(self._exchange, response, line)
        except EngineError as error:
            await beside(stream.long, stream.finish_attempt, error)
        else:
            await beside(stream.long, stream.finish_attempt)

    async def finish(self) -> None:
        """Ends the client's response after the last attempt.

        Raises:
            IntegrityError: The last attempt was broken.
            EngineError: The engine of the last attempt failed.
        """
        if self.guard.state is GuardState.FAILED and self._stream.failure is not None:
            raise self._stream.failure
        stream = self._stream
        if self.guard.state is not GuardState.DONE:
            stream.ending = await beside(stream.long, self.guard.give_up)
        if self.guard.state is GuardState.FAILED:
            raise stream.failure or self.guard.error()
        ending = [*stream.last, Frame(DONE)]
        for frame in ending:
            self._transcript.client.feed(frame)
        await self._exchange.end_stream(ending)


class WholeResponse:
    """As `StreamedResponse`, for one that does not stream: nothing goes out until the last attempt is checked."""

    streamed = False

    def __init__(self, exchange: Exchange, guard: WholeGuard, transcript: AnyTranscript = NULL_TRANSCRIPT) -> None:
        self.guard = guard.guard
        self._transcript = transcript
        self._whole_guard = guard
        self._exchange = exchange
        self._failure: GatewayError | None = None
        self._headers: RawHeaders = []
        self._long = False
        self._body = b""

    async def attempt(self, attempt: Attempt) -> None:
        self._failure = None
        record = self._transcript.attempt()
        number = len(self.guard.verdicts)
        self._headers = response_headers(attempt.response.headers)
        try:
            body = record.whole(await attempt.body(self.guard.settings.max_held_bytes))
            completion = await beside(len(body) >= LONG_BYTES, decode_chunk, body)
        except EngineError as error:
            self._broke(error, number)
            return
        try:
            self._long = len(body) >= LONG_BYTES or self.guard.takes_long
            self._body = await in_slices(self._judged(body, completion), aside=self._long)
        except BaseException:  # noqa: BLE001 - logged, reported, and as configured the client's error
            self._failure = guard_fault(self.guard, number)
            if self.guard.settings.unjudged == "pass":
                self._failure, self._body, self.guard.state = None, body, GuardState.DONE

    def _broke(self, error: EngineError, number: int) -> None:
        """Ends an attempt whose engine failed."""
        self._failure = error
        try:
            self.guard.broke(error.message)
        except BaseException:  # noqa: BLE001 - logged, reported and an error for the client
            self._failure = guard_fault(self.guard, number)

    def _judged(self, body: bytes, completion: dict[str, Any]) -> Generator[None, None, bytes]:
        """Returns the body that may go out: the very same one if nothing has to change, or nothing may."""
        checked = yield from self._whole_guard.judge(completion)
        return body if checked == completion or checked is None else encode_json(checked)

    async def finish(self) -> None:
        if self.guard.state is GuardState.FAILED and self._failure is not None:
            raise self._failure
        if self.guard.state is not GuardState.DONE:
            self._body = await beside(self._long, lambda: encode_json(self._whole_guard.give_up()))
        if self.guard.state is GuardState.FAILED:
            raise self._failure or self.guard.error()
        self._transcript.client.whole(self._body)
        await self._exchange.api.whole(self._exchange, 200, self._headers, self._body)


GuardedResponse = StreamedResponse | WholeResponse


class ObservedResponse(Check):
    """A response that reaches the client untouched; the guard, in mode `observe`, gets a copy of its bytes."""

    def __init__(self, model: ModelConfig, request: Mapping[str, Any], *, streamed: bool) -> None:
        self._whole_guard = None if streamed else WholeGuard(model.guard, request, grammar=model.grammar)
        self.guard = (
            self._whole_guard.guard if self._whole_guard else Guard(model.guard, request, grammar=model.grammar)
        )
        self._stream = GuardedStream(self.guard)
        self._body = b""
        self.limit_bytes = self._stream.limit_bytes
        self.slow = self._stream.slow

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Shows a frame to the guard and returns it."""
        if not self._stream.over:
            self._stream.feed(frame)
            self.slow = self._stream.slow
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Takes a whole response, which `finish_response` checks."""
        self._body = body
        return body

    async def finish_response(self, failure: EngineError | None = None) -> None:
        """Ends the response, with the engine's fault if that ended it."""
        if self._whole_guard is None or failure is not None:
            await beside(self._stream.long, self._stream.finish_attempt, failure)
            return
        is_long = len(self._body) >= LONG_BYTES or self.guard.takes_long
        try:
            completion = await beside(is_long, decode_chunk, self._body)
            await in_slices(self._whole_guard.judge(completion), aside=is_long)
        except EngineError as error:
            self._stream.finish_attempt(error)
        except BaseException:  # noqa: BLE001 - logged, reported and an error for the client
            guard_fault(self.guard, 0)
