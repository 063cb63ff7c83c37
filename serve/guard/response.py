"""An engine's response on its way through the guard: streamed frame by frame, whole at once, or only observed."""

from collections.abc import Mapping
from typing import Any, Protocol

from serve.config.pool import ModelConfig
from serve.errors import EngineError, encode_json
from serve.guard.core import Guard, GuardState, WholeGuard
from serve.guard.stream import GuardedStream
from serve.proxy.exchange import Exchange, RawHeaders, response_headers
from serve.proxy.relay import relay_stream
from serve.proxy.upstream import UpstreamResponse
from serve.sse import DONE, decode_chunk, encode_frames


class GuardedResponse(Protocol):
    """One response to the client, made of one attempt or several.

    Attributes:
        guard: Checks the attempts.
        streamed: True for an SSE stream.
    """

    guard: Guard
    streamed: bool

    async def attempt(self, response: UpstreamResponse) -> None:
        """Feeds one engine's response to the guard; `guard.state` says what came of it."""
        ...

    async def finish(self) -> None:
        """Ends the client's response after the last attempt.

        Raises:
            IntegrityError: The last attempt was broken.
            EngineError: The engine of the last attempt failed.
        """
        ...


def guarded_response(
    exchange: Exchange, model: ModelConfig, request: Mapping[str, Any], *, streamed: bool
) -> GuardedResponse:
    """Returns the guarded response to one request.

    Args:
        exchange: Where it goes.
        model: The model that responds.
        request: The body of the chat request.
        streamed: True for an SSE stream.
    """
    if streamed:
        return StreamedResponse(exchange, Guard(model.guard, request, grammar=model.grammar))
    return WholeResponse(exchange, WholeGuard(model.guard, request, grammar=model.grammar))


class StreamedResponse:
    """A stream; whatever is clean goes out as it arrives."""

    streamed = True

    def __init__(self, exchange: Exchange, guard: Guard) -> None:
        self.guard = guard
        self._exchange = exchange
        self._stream = GuardedStream(guard)

    async def attempt(self, response: UpstreamResponse) -> None:
        if not self._exchange.status:
            await self._exchange.start_stream(response.status, response_headers(response.headers))
        self._stream = stream = GuardedStream(self.guard)
        try:
            await relay_stream(self._exchange, response, stream)
        except EngineError as error:
            stream.finish(error)
        else:
            stream.finish()

    async def finish(self) -> None:
        ending = self._stream.ending if self.guard.state is GuardState.DONE else self.guard.give_up()
        if self.guard.state is GuardState.FAILED:
            raise self._stream.failure or self.guard.error()
        await self._exchange.end(encode_frames(ending) + DONE)


class WholeResponse:
    """A response that does not stream; nothing goes out until the last attempt is checked."""

    streamed = False

    def __init__(self, exchange: Exchange, guard: WholeGuard) -> None:
        self.guard = guard.guard
        self._whole_guard = guard
        self._exchange = exchange
        self._failure: EngineError | None = None
        self._headers: RawHeaders = []
        self._body = b""

    async def attempt(self, response: UpstreamResponse) -> None:
        self._failure = None
        self._headers = response_headers(response.headers)
        try:
            body = await response.body()
            completion = decode_chunk(body)
        except EngineError as error:
            self._failure = error
            self.guard.broke(error.message)
            return
        checked = self._whole_guard.check(completion)
        self._body = body if checked == completion or checked is None else encode_json(checked)

    async def finish(self) -> None:
        if self.guard.state is not GuardState.DONE:
            self._body = encode_json(self._whole_guard.give_up())
        if self.guard.state is GuardState.FAILED:
            raise self._failure or self.guard.error()
        await self._exchange.whole(200, self._headers, self._body)


class ObservedResponse:
    """A response that reaches the client untouched; the guard gets a copy of its bytes.

    Args:
        model: The model that responds; its guard is in mode `observe`.
        request: The body of the request.
        streamed: True for an SSE stream.
    """

    def __init__(self, model: ModelConfig, request: Mapping[str, Any], *, streamed: bool) -> None:
        self._whole_guard = None if streamed else WholeGuard(model.guard, request, grammar=model.grammar)
        self.guard = (
            self._whole_guard.guard if self._whole_guard else Guard(model.guard, request, grammar=model.grammar)
        )
        self._stream = GuardedStream(self.guard)

    def feed(self, data: bytes) -> None:
        """Checks bytes of the response: any part of a stream, or all of a whole one."""
        if self._whole_guard is None:
            self._stream.feed(data)
            return
        try:
            self._whole_guard.check(decode_chunk(data))
        except EngineError as error:
            self.guard.broke(error.message)

    def finish(self, failure: EngineError | None = None) -> None:
        """Ends the response.

        Args:
            failure: The engine's fault, if that ended it.
        """
        if failure is None:
            self.guard.finish()
        else:
            self.guard.broke(failure.message)
