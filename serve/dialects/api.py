"""One request in a dialect: a decoder where it comes in, an encoder at the end of the line, chat between them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from serve.dialects.dialect import Dialect, Identity, Translated
from serve.dialects.failure import Failure
from serve.dialects.translate import Translate
from serve.errors import EngineError, GatewayError, QuotaError, RateLimitError
from serve.guard.slices import LONG_BYTES, LONG_RAW_BYTES
from serve.http1.message import RawHeaders
from serve.http1.sse import decode_chunk
from serve.proxy.exchange import Api, Exchange
from serve.request.beside import beside
from serve.request.density import LONG_BODY_BYTES
from serve.request.patch import BodyPatch
from serve.stream.frame import Frame
from serve.stream.line import Stage
from serve.telemetry.spans import fail

ContextOf = Callable[[str], int | None]

_STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_.:-]")
_MOST_DROPPED = 32
_CLIENTS_FAULT = frozenset({400, 404, 413})
_CLIENTS_LIMIT = (RateLimitError, QuotaError)  # a full pool is 429 as well, but no limit of the client's


class DialectApi(Api):
    """A dialect, for one request: policy, guard and engines see a chat request and a chat answer.

    Args:
        dialect: Translates.
        context_of: Returns the tokens of a model's context, if they are known.
    """

    def __init__(self, dialect: Dialect, context_of: ContextOf) -> None:
        self.path = dialect.engine_path
        self._dialect = dialect
        self._context_of = context_of
        self._context: int | None = None
        self._translated: Translated | None = None
        self._stage: Translate | None = None

    def response_headers(self, request_id: str) -> dict[str, str]:
        return {self._dialect.id_header: request_id} if self._dialect.id_header else {}

    async def decode(self, exchange: Exchange, body: bytes) -> bytes:
        """Returns the chat body that the request's body stands for.

        Raises:
            InvalidRequestError: The body can't be translated.
        """
        translated = await beside(len(body) > LONG_BODY_BYTES, self._decode, body)
        self._translated = translated
        if translated.dropped:
            exchange.attribution.headers["x-specgate-dropped"] = dropped_header(translated.dropped)
        if translated.stream:
            exchange.keep_alive_from_now()
        return translated.body

    def _decode(self, body: bytes) -> Translated:
        """Translates a body; without a limit that is none, because the context ends the answer before."""
        translated = self._dialect.decode(body)
        if translated.max_tokens is not None:
            context = self._context = self._context_of(translated.model)
            if context is not None and translated.max_tokens >= context:
                patch = BodyPatch()
                patch.drop(("max_tokens", "max_completion_tokens"))
                return replace(translated, body=patch.apply(translated.body))
        return translated

    @property
    def last(self) -> Sequence[Stage]:
        return () if self._stage is None else (self._stage,)

    def open(self, exchange: Exchange) -> bytes:
        """Returns the events that begin a stream.

        Raises:
            EngineError: The client has asked for a whole answer.
        """
        translated = self._translated
        if translated is None or not translated.stream:
            raise EngineError("The engine streams an answer that was asked for as a whole.")
        encoder = self._dialect.stream_encoder(translated.memo, self._identity(exchange))
        self._stage = Translate(encoder, exchange.request_id)
        return encoder.start()

    async def close(self, exchange: Exchange, frames: Sequence[Frame]) -> bytes:
        stage = self._stage
        assert stage is not None  # only what is open is closed
        events = await beside(stage.fed_bytes >= LONG_RAW_BYTES, stage.close, frames)
        if stage.failure is not None:
            exchange.status = stage.failure.status
            fail(exchange.span, stage.failure.message)
        return events

    async def whole(self, exchange: Exchange, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a whole chat completion, or an engine's refusal, as the dialect has it."""
        translated = self._translated
        if status != 200 or translated is None:
            named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
            if not await self._estimated(exchange):
                await self._refuse(exchange, Failure.of_response(status, named, body))
        elif translated.stream:
            await exchange.start_stream(status, _STREAM_HEADERS)
            await exchange.end_stream([Frame.of(_as_stream(decode_chunk(body)))])
        else:
            encode = partial(self._encode_whole, body, translated.memo, self._identity(exchange))
            await exchange.send_whole(status, headers, await beside(len(body) >= LONG_BYTES, encode))

    def _encode_whole(self, body: bytes, memo: Any, identity: Identity) -> bytes:
        return self._dialect.encode_whole(decode_chunk(body), memo, identity)

    async def refuse(self, exchange: Exchange, error: GatewayError) -> None:
        """Sends an error in the dialect's shape: as a response or, once a stream has begun, as its end."""
        is_the_clients = error.status in _CLIENTS_FAULT or isinstance(error, _CLIENTS_LIMIT)
        if is_the_clients or not await self._estimated(exchange):
            await self._refuse(exchange, Failure.of_error(error))

    async def show_life(self, exchange: Exchange) -> None:
        """Begins the stream if no engine has done so yet, or adds an event that says nothing."""
        if self._stage is None:
            await exchange.start_stream(200, _STREAM_HEADERS)
        elif event := self._stage.keep_alive():
            await exchange.part(event)

    async def _refuse(self, exchange: Exchange, failure: Failure) -> None:
        fail(exchange.span, str(failure.status), failure.status)  # the code may be an engine's own
        streams = self._translated is not None and self._translated.stream
        if not exchange.status and streams and self._dialect.fails_in_stream(failure):
            await exchange.start_stream(200, _STREAM_HEADERS)
        if self._stage is not None:
            exchange.status = failure.status
            await exchange.end(self._stage.fail(failure))
            return
        if exchange.status:  # a whole response broke off, and nothing can be said any more
            await exchange.end()
            return
        status, body = self._dialect.encode_error(failure, exchange.request_id)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in failure.headers.items()]
        await exchange.send_whole(status, [*_JSON_HEADERS, *headers], body)

    async def _estimated(self, exchange: Exchange) -> bool:
        """Sends the gateway's own answer in place of an engine's; returns False if there is none."""
        estimate = self._dialect.estimate
        if estimate is None or self._translated is None or exchange.status:
            return False
        exchange.attribution.headers["x-specgate-estimate"] = "true"
        await exchange.send_whole(200, _JSON_HEADERS, estimate(self._translated.memo))
        return True

    def _identity(self, exchange: Exchange) -> Identity:
        return Identity(exchange.request_id, exchange.attribution.model, self._context)


def dropped_header(names: tuple[str, ...]) -> str:
    """Returns the value of `x-specgate-dropped`: names that a client chose, safe in a header and limited in number."""
    return ",".join([_NOT_IN_HEADER.sub("_", name)[:64] for name in dict.fromkeys(names)][:_MOST_DROPPED])


def _as_stream(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a whole completion as the one chunk of a stream, for a server that does not stream."""
    choices = completion.get("choices")
    return {
        **completion,
        "choices": [
            {**choice, "delta": choice.get("message")} for choice in choices or () if isinstance(choice, Mapping)
        ],
    }
