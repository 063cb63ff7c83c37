"""One request in a dialect: a decoder where it comes in, an encoder at the end of the line, chat between them.

`DIALECTS` has them by the path of their requests: another dialect is another row. `Translate` is the last stage of a
stream: chat frames in, the dialect's events out.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from serve.dialects import custom_tools
from serve.dialects.answer import REASONING, TEXT
from serve.dialects.dialect import Dialect, Encoder, Identity, Translated
from serve.dialects.failure import Failure
from serve.dialects.messages import COUNT_TOKENS, ID_HEADER, MESSAGES, PATH, encode_refusal
from serve.dialects.messages.response import VERSION_HEADER
from serve.dialects.responses import INPUT_TOKENS, RESPONSES
from serve.errors import INTERNAL, EngineError, GatewayError, InvalidRequestError, QuotaError, RateLimitError
from serve.http1.message import RawHeaders
from serve.http1.sse import decode_chunk, is_done
from serve.http1.turns import LONG_BODY_BYTES, LONG_BYTES, LONG_RAW_BYTES, beside
from serve.proxy.exchange import Api, Exchange
from serve.request.completion import CHAT_PATH, holds
from serve.request.patch import BodyPatch
from serve.stream.frame import ARGUMENTS, Frame, FrameTemplate, TextPlace
from serve.stream.line import Stage
from serve.telemetry.request_log import log_fault
from serve.telemetry.spans import fail

log = logging.getLogger("ray.serve.specgate.dialects")

DIALECTS: dict[str, Dialect] = {
    PATH: MESSAGES,
    f"{PATH}/count_tokens": COUNT_TOKENS,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": INPUT_TOKENS,
}
ContextOf = Callable[[str], int | None]  # the tokens of a model's context, if they are known

_STREAM_HEADERS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_.:-]")
_MOST_DROPPED = 32
_CLIENTS_FAULT = frozenset({400, 404, 413})
_CLIENTS_LIMIT = (RateLimitError, QuotaError)  # a full pool is 429 as well, but no limit of the client's
# The texts that clients get, by where a chat stream has them: those of the first choice.
_KINDS = {
    TextPlace(0, "content", -1): TEXT,
    TextPlace(0, "reasoning", -1): REASONING,
    TextPlace(0, "reasoning_content", -1): REASONING,
}
_CALLS = (0, ARGUMENTS)


def as_chat(body: bytes, api: str) -> bytes:
    """Returns the chat body that a body of another API stands for.

    Args:
        body: The request's.
        api: `chat`, which includes text completions, or the name of a dialect.

    Raises:
        InvalidRequestError: No dialect has that name, or the body is wrong.
    """
    if api == "chat":
        return custom_tools.decode(body)[0] if holds(body, b'"custom"') else body
    dialects = {dialect.name: dialect for dialect in DIALECTS.values() if dialect.engine_path == CHAT_PATH}
    if api not in dialects:
        raise InvalidRequestError(f"`api` must be one of chat, {', '.join(dialects)}, not {api!r}.", param="api")
    return dialects[api].decode(body).body


def refusal(
    error: GatewayError, path: str, headers: Mapping[str, str], request_id: str
) -> tuple[int, bytes, dict[str, str]]:
    """Returns status, body and headers of an error response outside every exchange, in the shape of the client's API.
    There need be no such route. Headers come by lower-case name: clients of the Messages API name its version.
    """
    is_messages = path == PATH or path.startswith(f"{PATH}/")
    if not is_messages and VERSION_HEADER not in headers:
        return error.status, error.to_json(), error.headers
    status, body = encode_refusal(error, request_id)
    return status, body, {**error.headers, ID_HEADER: request_id}


class DialectApi(Api):
    """A dialect, for one request: policy, guard and engines see a chat request and a chat answer."""

    def __init__(self, dialect: Dialect, context_of: ContextOf) -> None:
        self.path = dialect.engine_path
        self._dialect = dialect
        self._context_of = context_of
        self._context: int | None = None
        self._translated: Translated | None = None
        self._stage: Translate | None = None

    def response_headers(self, request_id: str) -> dict[bytes, bytes]:
        return {self._dialect.id_header.encode(): request_id.encode()} if self._dialect.id_header else {}

    async def decode(self, exchange: Exchange, body: bytes) -> bytes:
        """Returns the chat body that the request's body stands for.

        Raises:
            InvalidRequestError: The body can't be translated.
        """
        translated = await beside(len(body) > LONG_BODY_BYTES, self._decode, body)
        self._translated = translated
        if translated.dropped:
            exchange.attribution.headers[b"x-specgate-dropped"] = dropped_header(translated.dropped).encode()
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
        exchange.attribution.headers[b"x-specgate-estimate"] = b"true"
        await exchange.send_whole(200, _JSON_HEADERS, estimate(self._translated.memo))
        return True

    def _identity(self, exchange: Exchange) -> Identity:
        return Identity(exchange.request_id, exchange.attribution.model, self._context)


def dropped_header(names: Iterable[str]) -> str:
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


class Translate(Stage):
    """Turns a chat stream into the events of a dialect. It raises nothing: the event loop itself may call. Its
    encoder has begun.

    Attributes:
        ended: The client's stream has had its end; whatever follows is dropped.
        failure: Why the stream could not be translated; None if it could.
        fed_bytes: Bytes of the frames so far.
    """

    exact = False
    limit_bytes = 32 * 1024 * 1024  # the guard bounds its own frames, and sends a call as one

    def __init__(self, encoder: Encoder, request_id: str) -> None:
        self.ended = False
        self.failure: GatewayError | None = None
        self.fed_bytes = 0
        self._encoder = encoder
        self._request_id = request_id
        self._template: FrameTemplate | None = None
        self._kind: str | None = None  # of the texts to which the template adds
        self._is_call = False  # it adds to a call

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the events for a frame, as one."""
        if self.ended:
            return ()
        self.fed_bytes += len(frame.raw) or len(frame.text)
        try:
            events = self._events(frame)
        except GatewayError as error:
            events = self._fail(error)
        except BaseException:  # noqa: BLE001 - the last resort, as in the gateway itself
            log_fault(log, "the answer could not be translated", self._request_id)
            events = self._fail(GatewayError(INTERNAL))
        return (Frame(events),) if events else ()

    def close(self, frames: Sequence[Frame]) -> bytes:
        """Returns the events for the last frames, and those that end the client's stream."""
        events = [passed.raw for frame in frames for passed in self.feed(frame)]
        if not self.ended:
            self.ended = True
            try:
                events.append(self._encoder.finish())
            except GatewayError as error:
                events.append(self._fail(error))
        return b"".join(events)

    def keep_alive(self) -> bytes:
        """Returns an event that only shows that the stream is alive."""
        return b"" if self.ended else self._encoder.keep_alive()

    def fail(self, failure: Failure) -> bytes:
        """Returns the events that end a stream that broke; nothing if it has ended already."""
        if self.ended:
            return b""
        self.ended = True
        return self._encoder.fail(failure)

    def _events(self, frame: Frame) -> bytes:
        if (template := frame.template) is not None:
            if template is not self._template:
                self._template, self._kind = template, _KINDS.get(template.place)
                self._is_call = template.place[:2] == _CALLS
            if self._kind is not None:
                return self._encoder.feed_text(self._kind, frame.text)
            events = self._encoder.feed_arguments(template.place.call, frame.text) if self._is_call else None
            if events is not None:
                return events
        if not frame.whole:
            raise EngineError(f"The engine sent an event of more than {self.limit_bytes} bytes.")
        data = frame.data() if frame.chunk is None else None
        if frame.chunk is None and (data is None or is_done(data)):
            return b""
        chunk = frame.parsed(data)
        if chunk.get("error") is not None:
            return self.fail(Failure.of_frame(chunk["error"]))
        return self._encoder.feed(chunk)

    def _fail(self, error: GatewayError) -> bytes:
        """Returns the events that end a stream that can't be translated."""
        self.failure = error
        self.ended = True
        return self._encoder.fail(Failure.of_error(error))
