"""An engine's answer through the guard to the client: streamed frame by frame, whole at once, or only watched."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol

from serve.errors import EngineError
from serve.exchange import Exchange
from serve.frames import FrameReader, chunk_of, data_of, ends, frame_of, frames_of
from serve.integrity import Guard, GuardSettings, State, WholeGuard
from serve.protocol import DONE, RawHeaders, answered_headers, encode_json
from serve.upstream import Answer

Chunk = dict[str, Any]


class Flow(Protocol):
    """One answer to the client, made of one or several attempts.

    Attributes:
        guard: The guard that judges.
        streamed: Whether it is an SSE stream.
    """

    guard: Guard
    streamed: bool

    async def attempt(self, answer: Answer) -> None:
        """Take in an engine's answer; `guard.state` tells what came of it."""
        ...

    async def settle(self) -> None:
        """End the client's answer after the last attempt.

        Raises:
            IntegrityError: The last attempt was broken.
            EngineError: The last attempt broke off.
        """
        ...


def flow_of(exchange: Exchange, settings: GuardSettings, request: Mapping[str, Any], *, streamed: bool) -> Flow:
    """The flow of a request's answer."""
    return Streamed(exchange, settings, request) if streamed else Whole(exchange, settings, request)


class Streamed:
    """A stream: what is clean goes on as it arrives."""

    streamed = True

    def __init__(self, exchange: Exchange, settings: GuardSettings, request: Mapping[str, Any]) -> None:
        self.guard = Guard(settings, request)
        self._exchange = exchange
        self._failure: EngineError | None = None
        self._ending: list[Chunk] = []

    async def attempt(self, answer: Answer) -> None:
        if not self._exchange.status:
            await self._exchange.start_stream(answer.status, answered_headers(answer.headers))
        reader = FrameReader()
        self._failure = None
        try:
            async for data in _parts(answer):
                await self._pass(reader.feed(data))
                if _over(self.guard):
                    return
            self._ending = self.guard.finish()
        except EngineError as error:
            if self.guard.state is State.OPEN:
                self._failure = error
            self._ending = self.guard.broke(error.message)

    async def _pass(self, frames: list[bytes]) -> None:
        passed: list[bytes] = []
        try:
            passed.extend(_through(self.guard, frames))
        finally:  # what the guard let go before a frame that broke the stream counts as sent
            if passed:
                await self._exchange.part(b"".join(passed))

    async def settle(self) -> None:
        if self.guard.state is not State.DONE:
            self._ending = self.guard.give_up()
        if self.guard.state is State.FAILED:
            raise self._failure or self.guard.error()
        await self._exchange.end(frames_of(self._ending) + DONE)


class Whole:
    """An answer that does not stream: nothing has gone out before the last attempt is judged."""

    streamed = False

    def __init__(self, exchange: Exchange, settings: GuardSettings, request: Mapping[str, Any]) -> None:
        self._whole = WholeGuard(settings, request)
        self.guard = self._whole.guard
        self._exchange = exchange
        self._failure: EngineError | None = None
        self._headers: RawHeaders = []
        self._body = b""

    async def attempt(self, answer: Answer) -> None:
        self._failure, self._headers = None, answered_headers(answer.headers)
        try:
            body = await answer.body()
            value = chunk_of(body)
        except EngineError as error:
            self._failure = error
            self.guard.broke(error.message)
            return
        checked = self._whole.check(value)
        self._body = body if checked == value or checked is None else encode_json(checked)

    async def settle(self) -> None:
        if self.guard.state is not State.DONE:
            self._body = encode_json(self._whole.give_up())
        if self.guard.state is State.FAILED:
            raise self._failure or self.guard.error()
        await self._exchange.whole(200, self._headers, self._body)


class Watched:
    """An answer that goes to the client untouched, by another way; the guard only sees it.

    Args:
        settings: In mode `observe`.
        request: The body of the request.
        streamed: Whether it is an SSE stream.
    """

    def __init__(self, settings: GuardSettings, request: Mapping[str, Any], *, streamed: bool) -> None:
        self._whole = None if streamed else WholeGuard(settings, request)
        self.guard = self._whole.guard if self._whole else Guard(settings, request)
        self._reader = FrameReader()

    def see(self, data: bytes) -> None:
        """Look at bytes of the answer: any part of a stream, or all of a whole one."""
        try:
            if self._whole is not None:
                self._whole.check(chunk_of(data))
            else:
                for _ in _through(self.guard, self._reader.feed(data)):
                    pass
        except EngineError as error:
            self.guard.broke(error.message)

    def end(self) -> None:
        """The answer is over."""
        self.guard.finish()


def _through(guard: Guard, frames: list[bytes]) -> Iterator[bytes]:
    """The frames that may go out now: the engine's own bytes wherever nothing had to change."""
    for frame in frames:
        if _over(guard):
            return
        data = data_of(frame)
        if data is None:
            yield frame  # a comment that keeps the connection alive
        elif not ends(data):
            yield from _judged(guard, frame, chunk_of(data))


def _judged(guard: Guard, frame: bytes, chunk: Chunk) -> Iterator[bytes]:
    if (error := chunk.get("error")) is not None:
        said = error.get("message") if isinstance(error, dict) else None
        raise EngineError(f"The engine failed in the middle of the answer{f': {said}' if said else '.'}")
    for passed in guard.feed(chunk):
        yield frame if passed is chunk else frame_of(passed)


def _over(guard: Guard) -> bool:
    """Whether what follows of this attempt is of no use."""
    return guard.state is not State.OPEN and not guard.awaits_usage


async def _parts(answer: Answer) -> AsyncIterator[bytes]:
    yield answer.first
    async for part in answer.rest():
        yield part
