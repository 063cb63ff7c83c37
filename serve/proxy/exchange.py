"""One request and its response over plain ASGI, in the API that its client speaks; and what keeps a stream alive."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from opentelemetry.trace import Span

from serve.access.principal import NOBODY, PRIORITY_HEADER, Principal
from serve.config.access import PRIORITIES
from serve.errors import GatewayError, ModelNotFoundError
from serve.http1.asgi import Drain, Send, Sink
from serve.http1.message import RawHeaders
from serve.http1.sse import ALIVE, error_frame
from serve.limits.charge import NULL_CHARGE, AnyCharge
from serve.proxy.routed_request import Attribution
from serve.routing.fair_queue import Asker
from serve.stream.frame import Frame
from serve.stream.line import Stage
from serve.telemetry.spans import fail

KEEP_ALIVE_S = 5.0  # a stream is silent for no longer than twice this
_UNBUFFERED = (b"x-accel-buffering", b"no")  # nginx gathers what passes through it unless it is told not to


class KeepAlive:
    """Keeps a stream alive while nothing of it goes out: agents, and the proxies before us, give up one that is silent.

    It looks again and again whether anything was sent, whatever comes in: with a timer, because a task costs what ten
    tokens do. `Exchange.keep_alive_from_now` begins it, and `show_life` of the client's API sends something.

    - **Messages, Responses**: from where the request is decoded (`serve/dialects/api.py`), since their streams can say
      any error. It begins the stream, or else sends an event that says nothing: some agents do not count comments.
    - **Chat under the guard**, which holds calls: a comment, from where an engine has begun to answer
      (`serve/guard/response.py`). Before that an error is still a status, and another pool may answer (docs/adr/0090).
    - **Other chat and text completions**: never. They go from socket to socket, and nobody knows whether they stand
      between two events or within one, where nothing may be sent. If they are silent, so is their engine; vLLM has
      `--sse-keep-alive-interval`.

    Args:
        show_life: Sends what says nothing.

    Attributes:
        silent: Nothing was sent since it last looked; whoever sends sets it to False.
        within: Events are being made, or sent in pieces: nothing may be sent between them.
    """

    def __init__(self, show_life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.silent = True
        self.within = False
        self._show_life: Callable[[], Coroutine[Any, Any, None]] | None = show_life
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begins to look."""
        self.silent = True
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._look)

    def noting(self, write: Sink) -> Sink:
        """Returns what sends by `write` and notes that something was sent."""

        def send(data: bytes) -> Drain:
            self.silent = False
            return write(data)

        return send

    def stop(self) -> None:
        """Looks and sends no more, and forgets how."""
        for each in (self._timer, self._sending):
            if each is not None:
                each.cancel()
        self._timer = self._sending = None
        self._show_life = None

    def _look(self) -> None:
        reads = self._sending is None or self._sending.done()  # else the client itself reads nothing
        if self.silent and not self.within and reads and self._show_life is not None:
            self._sending = asyncio.create_task(self._show_life())
        self.watch()


class Api:
    """The API that a client speaks. As it is, it is that of chat completions, which engines speak too.

    Another one decodes the request where it comes in, and encodes the answer where it goes out; all between is chat.

    Attributes:
        path: Where engines get its requests; empty for where the client sent them.
    """

    path = ""

    @property
    def last(self) -> Sequence[Stage]:
        """The last stages of a stream, once that has begun."""
        return ()

    def response_headers(self, request_id: str) -> dict[bytes, bytes]:
        """Returns further headers of every response."""
        return {}

    async def decode(self, exchange: "Exchange", body: bytes) -> bytes:
        """Returns the body of the chat or text completion that a request's body stands for.

        Raises:
            GatewayError: It stands for none.
        """
        return body

    def open(self, exchange: "Exchange") -> bytes:
        """Returns what a stream begins with."""
        return b""

    async def close(self, exchange: "Exchange", frames: Sequence[Frame]) -> bytes:
        """Returns what a stream ends with, given the last frames."""
        return b"".join([frame.encoded() for frame in frames])

    def whole(self, exchange: "Exchange", status: int, headers: RawHeaders, body: bytes) -> Coroutine[Any, Any, None]:
        """Sends a whole completion, or an engine's refusal. `headers` are without `content-length`."""
        return exchange.send_whole(status, headers, body)

    async def refuse(self, exchange: "Exchange", error: GatewayError) -> None:
        """Sends an error: as a JSON response or, once a stream has begun, as its last frame."""
        fail(exchange.span, error.code, error.status)
        if exchange.status:
            exchange.status = error.status
            await exchange.end(error_frame(error) if exchange.streaming else b"")
            return
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode("latin-1")) for name, value in error.headers.items()]
        await exchange.send_whole(error.status, headers, error.to_json())

    async def show_life(self, exchange: "Exchange") -> None:
        """Sends what says nothing, in a stream that is silent."""
        await exchange.part(ALIVE)


CHAT = Api()


class Exchange(Struct):
    """The I/O of one request: its head, and the response as it is sent.

    Attributes:
        adds_request_id: True if we add `x-request-id` to the response; Ray Serve's own listener does so itself.
        write: Sends a part of the response without a task switch; None if the listener can't.
        api: That the client speaks.
        principal: On whose behalf the request is made. Of one that is refused at once, it has the names of the key at
            most; see `accept`.
        rank: The place of the request's priority in `PRIORITIES`.
        charge: The request's; it charges nothing until the request is admitted.
        keep_alive: Looks whether the stream is silent, once that is asked for.
        arrived_s: When the request arrived, by the monotonic clock.
        streaming: True once an SSE response has begun.
        status: HTTP status of the response; 0 until it begins.
        error: Code of the error that the gateway sent; empty if it sent none.
        asked: Name of a model that does not exist, if that is the error.
    """

    path: str
    headers: Mapping[str, str]
    send: Send
    request_id: str
    span: Span
    adds_request_id: bool = True
    write: Sink | None = None
    api: Api = CHAT
    principal: Principal = NOBODY
    rank: int = PRIORITIES.index(NOBODY.priority_default)
    charge: AnyCharge = NULL_CHARGE
    attribution: Attribution = field(default_factory=Attribution)
    keep_alive: KeepAlive | None = None
    arrived_s: float = field(default_factory=time.monotonic)
    streaming: bool = False
    status: int = 0
    error: str = ""
    asked: str = ""

    def accept(self) -> None:
        """Checks what the principal may do, and takes over its priority, before anything is read or reserved for it.

        Raises:
            InsufficientScopeError: The principal may not use models.
            InvalidRequestError: The request asks for a priority that there is not.
        """
        principal = self.principal
        principal.require("infer")
        wanted = self.headers.get(PRIORITY_HEADER)
        self.rank = PRIORITIES.index(principal.priority_default if wanted is None else principal.priority(wanted))

    def asker(self, body_bytes: int) -> Asker:
        """Returns on whose behalf slots are asked for.

        `body_bytes` is what the request costs where nobody estimates tokens.
        """
        tenant, (cost, queued) = self.principal.tenant, self.charge.asks(body_bytes)
        return Asker(tenant.name, tenant.weight, self.rank, cost, queued)

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Sends the response's status and headers, with our own.

        Raises:
            ValueError: A header can't be sent; nothing has been.
        """
        own, rates = self.attribution.headers, self.attribution.rate_headers
        if rates:  # an engine's own limits are not the tenant's
            headers = [each for each in headers if not each[0].startswith(b"x-ratelimit-")]
        if self.adds_request_id:
            own = {b"x-request-id": self.request_id.encode(), **own}
        headers = [*headers, *own.items(), *rates]
        self.status = status
        self.span.set_attribute("http.response.status_code", status)
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
        except ValueError:
            self.status = 0  # or the error would be sent as the body of a response that has not begun
            raise

    async def start_stream(self, status: int, headers: RawHeaders) -> None:
        """Begins a response whose body follows by `part`; does nothing if a keep-alive has begun it already.

        Raises:
            EngineError: The client has not asked for a stream.
        """
        if self.status:
            return
        opening = self.api.open(self)
        await self.start(status, [*headers, _UNBUFFERED])
        self.streaming = True
        if opening:
            await self.part(opening)

    async def part(self, data: bytes) -> None:
        """Sends a part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})
        if self.keep_alive is not None:
            self.keep_alive.silent = False

    def keep_alive_from_now(self) -> None:
        """Shows that the stream lives whenever it is silent for long, until it ends."""
        if self.keep_alive is None:
            self.keep_alive = KeepAlive(partial(self.api.show_life, self))
            self.keep_alive.watch()

    def release(self) -> None:
        """Ends what goes on beside the response."""
        if self.keep_alive is not None:
            self.keep_alive.stop()

    def end(self, data: bytes = b"") -> Awaitable[None]:
        """Sends the last part of the body."""
        if self.keep_alive is not None:
            self.keep_alive.stop()
        return self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def end_stream(self, frames: Sequence[Frame] = ()) -> None:
        """Sends the end of a stream, given the last chat frames."""
        if self.keep_alive is not None:
            self.keep_alive.stop()  # what ends a stream of another API may be made in a thread
        await self.end(await self.api.close(self, frames))

    async def send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a response that is not streamed, as it is; arguments as of `Api.whole`."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def refuse(self, error: GatewayError) -> None:
        """Sends an error as the client's API has it."""
        self.error = error.code
        if isinstance(error, ModelNotFoundError):
            self.asked = error.asked
        await self.api.refuse(self, error)
