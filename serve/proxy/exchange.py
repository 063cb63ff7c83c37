"""One request and its response over plain ASGI."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from policies import Candidate, Decision
from serve.access.principal import ANONYMOUS, PRIORITY_HEADER, Principal
from serve.config.access import PRIORITIES
from serve.errors import BodyTooLargeError, GatewayError, UnsupportedMediaTypeError
from serve.http1.asgi import Receive, Send, Sink
from serve.http1.sse import error_frame
from serve.limits.charge import Charge
from serve.proxy.headers import RawHeaders
from serve.request.beside import beside, joined
from serve.request.density import LONG_BODY_BYTES
from serve.routing.class_queue import Asker
from serve.stream.frame import Frame
from serve.stream.line import Stage
from serve.telemetry.spans import fail

_JSON = "application/json"
_NOT_ENCODED = frozenset({"", "identity"})


async def read_body(receive: Receive, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """Returns the whole body of a request that says its body is JSON.

    Args:
        receive: ASGI's.
        headers: From `request_headers`.
        limit_bytes: The longest body that is accepted.

    Raises:
        UnsupportedMediaTypeError: The body is not called JSON, or it is encoded.
        BodyTooLargeError: The body, or the length that the client announced, is over the limit.
        GatewayError: The listener gave up the body: it is malformed or too slow, or there is no room for it.
        CancelledError: The client left.
    """
    _check_media_type(headers)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise message.get("error") or asyncio.CancelledError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body"):
            if size > LONG_BODY_BYTES:
                return await beside(True, joined, parts)
            return b"".join(parts)


def _check_media_type(headers: Mapping[str, str]) -> None:
    """Refuses a body of another type: a web page of any site can send those, but JSON only if we allow it."""
    given = headers.get("content-type")
    if given is None:
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            return  # no body; what is wrong about that, its reader says best
        raise UnsupportedMediaTypeError(
            "The request has no Content-Type. Add the header `Content-Type: application/json`."
        )
    if given != _JSON and given.partition(";")[0].strip().lower() != _JSON:
        raise UnsupportedMediaTypeError(
            f"Unsupported Media Type: only 'application/json' is allowed, not {given[:100]!r}. "
            "Send the header `Content-Type: application/json`."
        )
    coding = headers.get("content-encoding", "")
    if coding.strip().lower() not in _NOT_ENCODED:
        raise UnsupportedMediaTypeError(
            f"The Content-Encoding {coding[:100]!r} is not supported. Send the body uncompressed, without that header."
        )


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than the limit of {limit_bytes} bytes.")


@dataclass(slots=True)
class Attribution:
    """Names the model and the pool that serve a request, for the response's headers, the metrics and the log.

    Attributes:
        engine_id: Under which engines get the request, with the attempt's number; empty until it is decided.
        model: Empty until the request is decided.
        pool: Empty until a pool is tried; after a rerun still the first pool that responded.
        speculative: `on` or `off`.
        headers: specgate's own response headers.
        limits: The response's headers on limits.
        faults: What went wrong on the way to the response, in words of few.
        waited_s: For slots, of all attempts.
    """

    engine_id: str = ""
    model: str = ""
    pool: str = ""
    speculative: str = "off"
    headers: dict[str, str] = field(default_factory=dict)
    limits: RawHeaders = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    def decided(self, decision: Decision) -> None:
        """Names the model and the reasons of the decision."""
        self.model = decision.model
        self.headers["x-specgate-reasons"] = ",".join([reason.advisory for reason in decision.reasons])

    def add_reason(self, reason: str) -> None:
        """Adds a reason that came up after the decision."""
        reasons = [*filter(None, self.headers.get("x-specgate-reasons", "").split(","))]
        if reason not in reasons:
            self.headers["x-specgate-reasons"] = ",".join([*reasons, reason])

    def tried(self, candidate: Candidate) -> None:
        """Names the candidate to which the request goes now."""
        self.pool = candidate.pool
        self.speculative = "on" if candidate.speculative else "off"
        self.headers["x-specgate-pool"] = self.pool
        self.headers["x-specgate-speculative"] = self.speculative

    def rerun(self, candidate: Candidate) -> None:
        """Names the candidate that runs the request again."""
        self.headers["x-specgate-rerun"] = candidate.pool


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

    def response_headers(self, request_id: str) -> dict[str, str]:
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

    async def whole(self, exchange: "Exchange", status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a whole completion, or an engine's refusal."""
        await exchange.send_whole(status, headers, body)

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

    def release(self) -> None:
        """Ends what goes on beside the response, and lets go of the exchange."""


CHAT = Api()


@dataclass(slots=True)
class Exchange:
    """The I/O of one request: its head, and the response as it is sent.

    Attributes:
        adds_request_id: True if we add `x-request-id` to the response; Ray Serve's own listener does so itself.
        write: Sends a part of the response without a task switch; None if the listener can't.
        api: That the client speaks.
        principal: On whose behalf the request is made; see `accept`.
        rank: The place of the request's priority in `PRIORITIES`.
        charge: What the request is charged; None until it is admitted, and where nobody counts.
        attribution: Who serves the request.
        arrived_s: When the request arrived, by the monotonic clock.
        streaming: True once an SSE response has begun.
        status: HTTP status of the response; 0 until it begins.
        error: Code of the error that the gateway sent; empty if it sent none.
    """

    path: str
    headers: Mapping[str, str]
    send: Send
    request_id: str
    span: Span
    adds_request_id: bool = True
    write: Sink | None = None
    api: Api = CHAT
    principal: Principal = ANONYMOUS
    rank: int = PRIORITIES.index(ANONYMOUS.priority_default)
    charge: Charge | None = None
    attribution: Attribution = field(default_factory=Attribution)
    arrived_s: float = field(default_factory=time.monotonic)
    streaming: bool = False
    status: int = 0
    error: str = ""

    def accept(self, principal: Principal) -> None:
        """Notes on whose behalf the request is made, before anything is read or reserved for it.

        Raises:
            InsufficientScopeError: The principal may not use models.
            InvalidRequestError: The request asks for a priority that there is not.
        """
        self.principal = principal
        principal.require("infer")
        wanted = self.headers.get(PRIORITY_HEADER)
        self.rank = PRIORITIES.index(principal.priority_default if wanted is None else principal.priority(wanted))

    async def read(self, receive: Receive, limit_bytes: int) -> bytes:
        """Returns the body of the request, as a chat or text completion.

        Raises:
            GatewayError: As raised by `read_body`, or the body stands for no completion.
        """
        return await self.api.decode(self, await read_body(receive, self.headers, limit_bytes))

    def asker(self, body_bytes: int) -> Asker:
        """Returns on whose behalf slots are asked for.

        Args:
            body_bytes: What the request costs where nobody estimates tokens.
        """
        tenant, charge = self.principal.tenant, self.charge
        cost, queued = (float(body_bytes), None) if charge is None else (charge.reservation.cost, charge.plan.queued)
        return Asker(tenant.name, tenant.weight, self.rank, cost, queued)

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Sends the response's status and headers, with our own.

        Raises:
            ValueError: A header can't be sent; nothing has been.
        """
        headers = [*headers, *self._own_headers()]
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
        await self.start(status, headers)
        self.streaming = True
        if opening:
            await self.part(opening)

    async def part(self, data: bytes) -> None:
        """Sends a part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Sends the last part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def end_stream(self, frames: Sequence[Frame] = ()) -> None:
        """Sends the end of a stream, given the last chat frames."""
        await self.end(await self.api.close(self, frames))

    async def whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a whole completion, or an engine's refusal, as the client's API has it.

        Args:
            status: HTTP status.
            headers: Without `content-length`.
            body: All of it.
        """
        await self.api.whole(self, status, headers, body)

    async def send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a response that is not streamed, as it is; arguments as of `whole`."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def refuse(self, error: GatewayError) -> None:
        """Sends an error as the client's API has it."""
        self.error = error.code
        await self.api.refuse(self, error)

    def _own_headers(self) -> RawHeaders:
        headers = self.attribution.headers
        if self.adds_request_id:
            headers = {"x-request-id": self.request_id, **headers}
        own = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        return own + self.attribution.limits
