"""One request in a dialect: the exchange that shows policy and guard a chat request, and the client its own API."""

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from opentelemetry.trace import Span

from serve.dialects.answer import REASONING, TEXT
from serve.dialects.dialect import Dialect, Encoder, Identity, Translated
from serve.dialects.failure import Failure
from serve.dialects.keep_alive import KeepAlive
from serve.errors import EngineError, GatewayError, retry_after
from serve.guard.core import Place
from serve.guard.frame_template import TemplateLearner
from serve.guard.slices import LONG_BYTES, LONG_FRAME_BYTES, LONG_RAW_BYTES, beside
from serve.http1.asgi import Drain, Receive, Send, Sink
from serve.http1.sse import FrameReader, decode_chunk, encode_frame, frame_data, is_done
from serve.proxy.exchange import Exchange
from serve.proxy.headers import RawHeaders
from serve.request.completion import without_members
from serve.request.density import LONG_BODY_BYTES
from serve.telemetry.request_log import log_fault
from serve.telemetry.spans import fail

ContextOf = Callable[[str], int | None]

log = logging.getLogger("ray.serve.specgate.dialects")

_STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_.:-]")
_MOST_DROPPED = 32
_MAX_FRAME_BYTES = 32 * 1024 * 1024  # the guard bounds its own frames, and sends a call as one
_CLIENTS_FAULT = frozenset({400, 404, 413})
# The texts that clients get, by where a chat stream has them: those of the first choice.
_KINDS = {
    Place(0, "content", -1): TEXT,
    Place(0, "reasoning", -1): REASONING,
    Place(0, "reasoning_content", -1): REASONING,
}


class TranslatedExchange(Exchange):
    """An exchange whose client speaks a dialect.

    Everything that the gateway does with a chat request and its response happens on this side of the translation.

    Args:
        dialect: Translates.
        context_of: Returns the tokens of a model's context, if they are known.
        headers: As `Exchange` has them, and all that follows.
    """

    def __init__(
        self,
        dialect: Dialect,
        context_of: ContextOf,
        headers: Mapping[str, str],
        send: Send,
        request_id: str,
        span: Span,
        adds_request_id: bool,
        write: Sink | None,
    ) -> None:
        super().__init__(dialect.engine_path, headers, send, request_id, span, adds_request_id, write)
        self._dialect = dialect
        self._context_of = context_of
        self._write_raw = write
        if write is not None:
            self.write = self._write_translated
        self._translated: Translated | None = None
        self._context: int | None = None
        self._encoder: Encoder | None = None
        self._frames = FrameReader(_MAX_FRAME_BYTES)
        self._templates = TemplateLearner()
        self._kind: str | None = None  # of the texts that the template finds
        self._taken_bytes = 0
        self._over = False
        self._keep_alive = KeepAlive(self._show_life)
        if dialect.id_header:
            self.attribution.headers[dialect.id_header] = request_id

    async def read(self, receive: Receive, limit_bytes: int) -> bytes:
        """Returns the chat body that the request's body stands for.

        Raises:
            GatewayError: As `Exchange.read`, or the body can't be translated.
        """
        body = await super().read(receive, limit_bytes)
        decode = self._dialect.decode
        translated = await beside(len(body) > LONG_BODY_BYTES, decode, body, self.headers)
        self._translated = translated
        if translated.dropped:
            self.attribution.headers["x-specgate-dropped"] = dropped_header(translated.dropped)
        if translated.stream:
            self._keep_alive.watch()
        return self._bounded(translated)

    def _bounded(self, translated: Translated) -> bytes:
        """Returns the chat body, without a limit that is no limit: the rest of the context ends the answer before."""
        limit = translated.max_tokens
        if limit is None:
            return translated.body
        context = self._context = self._context_of(translated.model)
        if context is None or limit < context:
            return translated.body
        return without_members(translated.body, ("max_tokens", "max_completion_tokens"))

    async def start_stream(self, status: int, headers: RawHeaders) -> None:
        """Begins a stream of the dialect's events; does nothing if a keep-alive has begun it already."""
        if self.status:
            return
        if self._encoder is None:
            assert self._translated is not None
            if not self._translated.stream:
                raise EngineError("The engine streams an answer that was asked for as a whole.")
            self._encoder = self._dialect.stream_encoder(self._translated.memo, self._identity())
        await super().start_stream(status, headers)
        await super().part(self._encoder.start())

    async def part(self, data: bytes) -> None:
        """Translates a part of a chat stream."""
        if events := await beside(self._completes_long(data), self._encode, data):
            await super().part(events)

    async def end(self, data: bytes = b"") -> None:
        """Translates the last part of a chat stream, and ends the client's."""
        await super().end(await beside(self._taken_bytes >= LONG_RAW_BYTES, self._encode_end, data))

    def _encode_end(self, data: bytes) -> bytes:
        events = self._encode(data)
        if not self._over and self._encoder is not None:
            try:
                events += self._encoder.finish()
                self._over = True
            except GatewayError as error:
                events += self._fail(error)
        return events

    def _completes_long(self, data: bytes) -> bool:
        """Returns True if data may complete a frame that takes longer to translate than other requests should wait."""
        self._taken_bytes += len(data)
        return self._frames.pending_bytes >= LONG_FRAME_BYTES

    async def whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Translates a whole chat completion, or an engine's refusal."""
        translated = self._translated
        assert translated is not None
        if status != 200:
            named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
            if not await self._estimated():
                await self._refuse(Failure.of_response(status, named, body))
        elif translated.stream:
            await self.start_stream(status, _STREAM_HEADERS)
            await self.end(_as_stream(decode_chunk(body)))
        else:
            encode = partial(self._encode_whole, body, translated.memo)
            await self._send_whole(status, headers, await beside(len(body) >= LONG_BYTES, encode))

    def _encode_whole(self, body: bytes, memo: Any) -> bytes:
        return self._dialect.encode_whole(decode_chunk(body), memo, self._identity())

    async def refuse(self, error: GatewayError) -> None:
        """Sends an error in the dialect's shape: as a response or, once a stream has begun, as its end."""
        self.error = error.code
        if error.status in _CLIENTS_FAULT or not await self._estimated():
            await self._refuse(Failure.of_error(error))

    def close(self) -> None:
        """Ends the keep-alives, and lets go of what holds this exchange: with it the request's body would stay."""
        self._keep_alive.stop()
        self.write = None

    async def _refuse(self, failure: Failure) -> None:
        fail(self.span, str(failure.status), failure.status)  # the code may be an engine's own
        if not self.status and self._streams and self._dialect.fails_in_stream(failure):
            await self.start_stream(200, _STREAM_HEADERS)
        if self._encoder is not None:
            self.status = failure.status
            events = b"" if self._over else self._encoder.fail(failure)
            self._over = True
            await super().end(events)
            return
        if self.status:  # a whole response broke off, and nothing can be said any more
            await super().end()
            return
        status, body = self._dialect.encode_error(failure, self.request_id)
        named = dict(failure.headers)
        if after := retry_after(failure.retry_after_s):
            named["retry-after"] = after
        headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        await self._send_whole(status, [*_JSON_HEADERS, *headers], body)

    async def _estimated(self) -> bool:
        """Sends the gateway's own answer in place of an engine's; returns False if there is none."""
        estimate = self._dialect.estimate
        if estimate is None or self._translated is None or self.status:
            return False
        self.attribution.headers["x-specgate-estimate"] = "true"
        await self._send_whole(200, _JSON_HEADERS, estimate(self._translated.memo))
        return True

    async def _send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await super().end(body)

    @property
    def _streams(self) -> bool:
        """True if the client asked for a stream; False until its request is read."""
        return self._translated is not None and self._translated.stream

    def _write_translated(self, data: bytes) -> Drain:
        events = self._encode(data)
        assert self._write_raw is not None
        return self._write_raw(events) if events else None

    def _encode(self, data: bytes) -> bytes:
        """Returns the events for a part of a chat stream. It raises nothing: the event loop itself may have called."""
        encoder = self._encoder
        if self._over or encoder is None:
            return b""
        self._keep_alive.silent = False
        events: list[bytes] = []
        try:
            if not self._frames.rest and (more := self._more_text(encoder, data)) is not None:
                return more  # the read is exactly one frame, as nearly always
            for frame in self._frames.feed(data):
                more = self._more_text(encoder, frame)
                events.append(self._events(encoder, frame) if more is None else more)
                if self._over:
                    break
        except GatewayError as error:
            events.append(self._fail(error))
        except Exception:  # noqa: BLE001 - the last resort, as in the gateway itself
            log_fault(log, "the answer could not be translated", self.request_id)
            events.append(self._fail(GatewayError("Internal error; see the gateway's log.")))
        return b"".join(events)

    def _more_text(self, encoder: Encoder, frame: bytes) -> bytes | None:
        """Returns the events for a frame like those before it, with nothing but more of a text; None for any other."""
        template = self._templates.template
        if template is None or self._kind is None or (text := template.match(frame)) is None:
            return None
        return encoder.feed_text(self._kind, text)

    def _events(self, encoder: Encoder, frame: bytes) -> bytes:
        """Returns the events for any frame."""
        payload = frame_data(frame)
        if payload is None or is_done(payload):
            return b""
        chunk = decode_chunk(payload)
        template = self._templates.learn(frame, chunk)
        self._kind = None if template is None else _KINDS.get(template.place)
        if chunk.get("error") is not None:
            self._over = True
            return encoder.fail(Failure.of_frame(chunk["error"]))
        return encoder.feed(chunk)

    def _fail(self, error: GatewayError) -> bytes:
        """Returns the events that end a stream that can't be translated."""
        assert self._encoder is not None
        self._over = True
        self.status = error.status
        fail(self.span, error.message)
        return self._encoder.fail(Failure.of_error(error))

    async def _show_life(self) -> None:
        """Begins the stream if no engine has done so yet, or adds an event that says nothing."""
        if self._over:
            return
        if self._encoder is None:
            await self.start_stream(200, _STREAM_HEADERS)
        else:
            await super().part(self._encoder.keep_alive())

    def _identity(self) -> Identity:
        return Identity(self.request_id, self.attribution.model, self._context)


def dropped_header(names: tuple[str, ...]) -> str:
    """Returns the value of `x-specgate-dropped`: names that a client chose, safe in a header and limited in number."""
    return ",".join([_NOT_IN_HEADER.sub("_", name)[:64] for name in dict.fromkeys(names)][:_MOST_DROPPED])


def _as_stream(completion: Mapping[str, Any]) -> bytes:
    """Returns a whole completion as a stream of one chunk, for a server that does not stream."""
    choices = completion.get("choices")
    chunk = {
        **completion,
        "choices": [
            {**choice, "delta": choice.get("message")} for choice in choices or () if isinstance(choice, Mapping)
        ],
    }
    return encode_frame(chunk)
