"""One request in a dialect: the exchange that shows policy and guard a chat request, and the client its own API."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.trace import Span

from serve.dialects.answer import REASONING, TEXT
from serve.dialects.dialect import Dialect, Encoder, Identity, Translated
from serve.dialects.failure import Failure
from serve.errors import EngineError, GatewayError, retry_after
from serve.guard.core import Place
from serve.guard.frame_template import TemplateLearner
from serve.http1.asgi import Drain, Receive, Send, Sink
from serve.proxy.exchange import Exchange, RawHeaders
from serve.request.completion import without_members
from serve.sse import FrameReader, decode_chunk, encode_frame, frame_data, is_done
from serve.telemetry.instruments import fail

ContextOf = Callable[[str], int | None]

log = logging.getLogger("ray.serve.specgate.dialects")

# Agents give up a stream that is silent for long, and comments do not count for all of them. A stream is silent for no
# longer than twice this.
KEEP_ALIVE_S = 5.0

_STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_.:-]")
_MOST_DROPPED = 32
_LONG_BODY_BYTES = 1024 * 1024
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
        self._encoder: Encoder | None = None
        self._frames = FrameReader(_MAX_FRAME_BYTES)
        self._templates = TemplateLearner()
        self._over = False
        self._silent = True
        self._keeping_alive: asyncio.Task[None] | None = None
        if dialect.id_header:
            self.attribution.headers[dialect.id_header] = request_id

    async def read(self, receive: Receive, limit_bytes: int) -> bytes:
        """Returns the chat body that the request's body stands for.

        Raises:
            GatewayError: As `Exchange.read`, or the body can't be translated.
        """
        body = await super().read(receive, limit_bytes)
        decode = self._dialect.decode
        if len(body) > _LONG_BODY_BYTES:  # tenths of a second, in which other requests must have their turn
            translated = await asyncio.to_thread(decode, body, self.headers)
        else:
            translated = decode(body, self.headers)
        self._translated = translated
        if translated.dropped:
            self.attribution.headers["x-specgate-dropped"] = dropped_header(translated.dropped)
        if translated.stream:
            self._keeping_alive = asyncio.create_task(self._keep_alive())
        return self._bounded(translated)

    def _bounded(self, translated: Translated) -> bytes:
        """Returns the chat body, without a limit that is no limit: the rest of the context ends the answer before."""
        limit = translated.max_tokens
        if limit is None or (context := self._context_of(translated.model)) is None or limit < context:
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
        if events := self._encode(data):
            await super().part(events)

    async def end(self, data: bytes = b"") -> None:
        """Translates the last part of a chat stream, and ends the client's."""
        events = self._encode(data)
        if not self._over and self._encoder is not None:
            try:
                events += self._encoder.finish()
                self._over = True
            except GatewayError as error:
                events += self._fail(error)
        await super().end(events)

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
            encoded = self._dialect.encode_whole(decode_chunk(body), translated.memo, self._identity())
            await self._send_whole(status, headers, encoded)

    async def refuse(self, error: GatewayError) -> None:
        """Sends an error in the dialect's shape: as a response or, once a stream has begun, as its end."""
        if error.status in _CLIENTS_FAULT or not await self._estimated():
            await self._refuse(Failure.of_error(error))

    def close(self) -> None:
        """Ends the keep-alives."""
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()

    async def _refuse(self, failure: Failure) -> None:
        fail(self.span, failure.message)
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
        events: list[bytes] = []
        try:
            for frame in self._frames.feed(data):
                events.append(self._events(encoder, frame))
                if self._over:
                    break
        except GatewayError as error:
            events.append(self._fail(error))
        except Exception:  # the last resort, as in the gateway itself
            log.exception("request %s: the answer could not be translated", self.request_id)
            events.append(self._fail(GatewayError("Internal error; see the gateway's log.")))
        self._silent = False
        return events[0] if len(events) == 1 else b"".join(events)

    def _events(self, encoder: Encoder, frame: bytes) -> bytes:
        """Returns the events for one frame; one like those before, with nothing but more of a text, is not decoded."""
        template = self._templates.template
        kind = None if template is None else _KINDS.get(template.place)
        if template is not None and kind is not None and (text := template.match(frame)) is not None:
            return encoder.feed_text(kind, text)
        payload = frame_data(frame)
        if payload is None or is_done(payload):
            return b""
        chunk = decode_chunk(payload)
        self._templates.learn(frame, chunk)
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

    async def _keep_alive(self) -> None:
        """Begins the stream if no engine does so soon, and shows from time to time that it is alive."""
        while not self._over:
            self._silent = True
            await asyncio.sleep(KEEP_ALIVE_S)
            if not self._silent or self._over:
                continue
            if self._encoder is None:
                await self.start_stream(200, _STREAM_HEADERS)
            else:
                await super().part(self._encoder.keep_alive())

    def _identity(self) -> Identity:
        return Identity(self.request_id, self.attribution.model)


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
