"""An engine's answer through the guard to the client: streamed frame by frame, whole at once, or only watched."""

from collections.abc import Mapping
from typing import Any, Protocol

from serve.errors import EngineError, encode_json
from serve.guard.core import Guard, GuardSettings, GuardState, WholeGuard
from serve.guard.stream import Sieve
from serve.proxy.exchange import Exchange
from serve.proxy.headers import RawHeaders, answered_headers
from serve.proxy.relay import pass_on
from serve.proxy.upstream import Answer
from serve.sse import DONE, chunk_of, frames_of


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
        self._attempt = Sieve(self.guard)

    async def attempt(self, answer: Answer) -> None:
        if not self._exchange.status:
            await self._exchange.start_stream(answer.status, answered_headers(answer.headers))
        self._attempt = attempt = Sieve(self.guard)
        try:
            await pass_on(self._exchange, answer, attempt)
        except EngineError as error:
            attempt.broke(error)
        else:
            attempt.finish()

    async def settle(self) -> None:
        ending = self._attempt.ending if self.guard.state is GuardState.DONE else self.guard.give_up()
        if self.guard.state is GuardState.FAILED:
            raise self._attempt.failure or self.guard.error()
        await self._exchange.end(frames_of(ending) + DONE)


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
        if self.guard.state is not GuardState.DONE:
            self._body = encode_json(self._whole.give_up())
        if self.guard.state is GuardState.FAILED:
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
        self._stream = Sieve(self.guard)

    def see(self, data: bytes) -> None:
        """Look at bytes of the answer: any part of a stream, or all of a whole one."""
        if self._whole is None:
            self._stream.feed(data)
            return
        try:
            self._whole.check(chunk_of(data))
        except EngineError as error:
            self.guard.broke(error.message)

    def end(self) -> None:
        """The answer is over."""
        self.guard.finish()
