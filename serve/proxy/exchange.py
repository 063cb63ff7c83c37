"""One request and its answer over plain ASGI: reading the one, sending the other."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from policies import Candidate, Decision, RequestFeatures
from serve.errors import GatewayError, encode_json
from serve.http1.asgi import Send
from serve.proxy.headers import RawHeaders
from serve.request.completion import Asked
from serve.sse import error_frame
from serve.telemetry.instruments import fail


@dataclass(slots=True)
class Exchange:
    """One request on its way through: what came in, what was decided, what has been sent.

    Attributes:
        adds_request_id: The answer's `x-request-id` is on us; Ray Serve's own listener adds one too.
        write: Sends a part at once and returns what to wait for, if anything; None if the listener can't.
        candidate: The way that serves the request at present, or did at last; of a rerun answer, the first attempt's.
        guarded: The guard judges the answer, so our parsers report what they can't read.
        rerun: The pool of the last rerun; empty if there was none.
        streaming: The answer is an SSE stream that has begun.
        status: HTTP status of the answer; 0 while none has begun.
    """

    path: str
    headers: Mapping[str, str]
    send: Send
    request_id: str
    span: Span
    adds_request_id: bool = True
    write: "Callable[[bytes], asyncio.Future[None] | None] | None" = None
    body: bytes = b""
    arrived: float = field(default_factory=time.monotonic)
    asked: Asked | None = None
    features: RequestFeatures | None = None
    decision: Decision | None = None
    candidate: Candidate | None = None
    guarded: bool = False
    rerun: str = ""
    streaming: bool = False
    status: int = 0

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the answer's status and headers, ours among them."""
        self.status = status
        self.span.set_attribute("http.response.status_code", status)
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *self._ours()]})

    async def start_stream(self, status: int, headers: RawHeaders) -> None:
        """Begin an answer whose parts follow by `part`."""
        self.streaming = True
        await self.start(status, headers)

    async def part(self, data: bytes) -> None:
        """Send a part of a stream."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the answer."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send an answer that does not stream."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def refuse(self, error: GatewayError) -> None:
        """Translate an error once: to a JSON answer, or, when the stream has begun, to its one last frame."""
        fail(self.span, error.message)
        if self.status:
            self.status = error.status
            await self.end(error_frame(error) if self.streaming else b"")
            return
        headers = [(b"content-type", b"application/json")]
        if error.retry_after_s:
            headers.append((b"retry-after", str(max(1, round(error.retry_after_s))).encode()))
        await self.whole(error.status, headers, encode_json(error.to_body()))

    def _ours(self) -> RawHeaders:
        """The response headers that are specgate's own."""
        headers = {"x-request-id": self.request_id} if self.adds_request_id else {}
        if self.decision is not None and self.candidate is not None:
            headers["x-specgate-pool"] = self.candidate.pool
            headers["x-specgate-speculative"] = "on" if self.candidate.speculative else "off"
        if self.rerun:
            headers["x-specgate-rerun"] = self.rerun
        if self.decision is not None:
            headers["x-specgate-reasons"] = ",".join(reason.advisory for reason in self.decision.reasons)
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
