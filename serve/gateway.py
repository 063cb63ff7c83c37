"""The request path: parse, decide, reserve a replica, relay. Plain ASGI; Ray Serve only brings the requests here."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import Span

from policies import Candidate, Decision, Policy, RequestFeatures, decide, explain
from serve.body import engine_body
from serve.config import GatewayConfig
from serve.errors import (
    BodyTooLargeError,
    DeadlineError,
    EngineError,
    GatewayError,
    ModelNotFoundError,
    OverloadedError,
    PolicyConflictError,
    PoolUnavailableError,
)
from serve.features import extract
from serve.protocol import StreamEnd, answered_headers, encode_json, error_frame, forwarded_headers, request_headers
from serve.router import Route
from serve.telemetry import Telemetry, fail, inject
from serve.upstream import Answer, Upstream

log = logging.getLogger("ray.serve.specgate.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_RETRIED_STATUS = frozenset({500, 502, 503, 504})  # 429 is the engine's word on load: passed on with its Retry-After


@dataclass(slots=True)
class Exchange:
    """One request on its way through: what came in, what was decided, what has been sent."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    send: Send
    request_id: str
    span: Span
    arrived: float = field(default_factory=time.monotonic)
    features: RequestFeatures | None = None
    decision: Decision | None = None
    candidate: Candidate | None = None
    streaming: bool = False
    status: int = 0

    def ours(self) -> list[tuple[bytes, bytes]]:
        """The response headers of DESIGN section 8."""
        # Ray Serve echoes an id that came in, and makes one up before we see the request; without it, it is on us.
        headers = {} if "x-request-id" in self.headers else {"x-request-id": self.request_id}
        if self.decision is not None and self.candidate is not None:
            headers["x-specgate-pool"] = self.candidate.pool
            headers["x-specgate-speculative"] = "on" if self.candidate.speculative else "off"
        if self.decision is not None:
            headers["x-specgate-reasons"] = ",".join(reason.advisory for reason in self.decision.reasons)
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]


class Gateway:
    """Routes requests to pools.

    Args:
        config: The gateway's configuration.
        policy: What is safe; replaced as a whole by `adopt`.
        routes: The pools by model and pool name.
        upstream: HTTP to the replicas.
        telemetry: Spans and metrics.
    """

    def __init__(
        self,
        config: GatewayConfig,
        policy: Policy,
        routes: Mapping[tuple[str, str], Route],
        upstream: Upstream,
        telemetry: Telemetry,
    ) -> None:
        self._config, self._routes, self._upstream, self._telemetry = config, routes, upstream, telemetry
        self.policy = policy

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on; requests under way keep the decision they have."""
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one POST to `/v1/chat/completions` or `/v1/completions`."""
        headers = request_headers(scope["headers"])
        path = scope["path"]
        with self._telemetry.request(f"POST {path}", headers) as span:
            exchange = Exchange(path, headers, b"", send, headers.get("x-request-id") or uuid.uuid4().hex, span)
            try:
                exchange.body = await read_body(receive, headers, self._config.limits.max_body_bytes)
                await self._while_connected(self._answer(exchange), receive)
            except GatewayError as error:
                await self._refuse(exchange, error)
            except asyncio.CancelledError:
                exchange.status = 499  # nginx's number for a client that left
                raise
            except Exception:  # the last resort: the client gets an error, the log gets the traceback
                log.exception("request %s failed", exchange.request_id)
                await self._refuse(exchange, GatewayError("Internal error; the gateway's log knows more."))
            finally:
                self._record(exchange)

    def explain(self, body: bytes, headers: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """The decision for a request and what its evidence is, without the engine; the same code as for a real one."""
        features, decision = self._decide(body, headers)
        return explain(self.policy, features, decision), decision.evidence

    @staticmethod
    async def _while_connected(answering: Any, receive: Receive) -> None:
        """Run to the end, or cancel when the client leaves: the engine must not work for nobody."""
        work = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(_client_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()

    def _decide(self, body: bytes, headers: Mapping[str, str]) -> tuple[RequestFeatures, Decision]:
        with self._telemetry.step("features"):
            features = extract(body, headers, self._thinking_default)
            model = self._config.resolve(features.model)
            if model is None:
                raise ModelNotFoundError.unknown(features.model, self._config.models)
        with self._telemetry.step("decide") as span:
            decision = decide(self.policy, features.of_model(model), features.wish)
            span.set_attributes(decision_attributes(decision))
        return features, decision

    def _thinking_default(self, model: str) -> bool:
        name = self._config.resolve(model)
        return name is not None and self._config.models[name].thinking

    async def _answer(self, exchange: Exchange) -> None:
        exchange.features, exchange.decision = self._decide(exchange.body, exchange.headers)
        exchange.span.set_attributes(decision_attributes(exchange.decision))
        if exchange.decision.refused:
            raise PolicyConflictError(refusal(exchange.decision))
        limit = None if exchange.features.stream else self._config.limits.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._first_that_answers(exchange, exchange.decision.candidates)
        except TimeoutError as error:
            raise DeadlineError(f"No complete answer within {limit:g} s.") from error

    async def _first_that_answers(self, exchange: Exchange, candidates: Sequence[Candidate]) -> None:
        """Try the decided pool twice (another replica may answer), then the other allowed ones, within the limit."""
        plan = [candidates[0], *candidates][: self._config.limits.max_attempts]
        full: set[str] = set()
        failure: GatewayError = PoolUnavailableError(
            "No replica answered.", None, None, self._config.limits.retry_after_s
        )
        for place, candidate in enumerate(plan):
            if candidate.pool in full:
                continue  # its queue is as full as it was a moment ago
            exchange.candidate = candidate
            try:
                if await self._attempt(exchange, candidate, last=place == len(plan) - 1):
                    return
            except _RETRIED as error:
                if exchange.status:
                    raise
                failure = error
                if isinstance(error, OverloadedError):
                    full.add(candidate.pool)
                log.warning("request %s: pool %s: %s", exchange.request_id, candidate.pool, error)
            self._telemetry.instruments.retries.add(1, {"pool": candidate.pool})
        raise failure

    async def _attempt(self, exchange: Exchange, candidate: Candidate, last: bool) -> bool:
        """Send the request to one replica; False if it failed before the first byte in a way that others may not."""
        assert exchange.decision is not None
        assert exchange.features is not None
        route = self._routes[exchange.decision.model, candidate.pool]
        async with AsyncExitStack() as held:
            with self._telemetry.step("choose_replica", pool=candidate.pool):
                endpoint = await held.enter_async_context(route.reserve())
            headers = forwarded_headers(exchange.headers, endpoint.key) | {"x-request-id": exchange.request_id}
            body = engine_body(exchange.body, own_fields=exchange.features.own_fields, opt_out=candidate.opt_out)
            with self._telemetry.step("upstream", pool=candidate.pool):
                inject(headers)
                answer = await held.enter_async_context(self._upstream.post(endpoint, exchange.path, body, headers))
                if answer.status in _RETRIED_STATUS and not last:
                    return False
                await self._relay(exchange, answer)
        return True

    async def _relay(self, exchange: Exchange, answer: Answer) -> None:
        streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
        if not streamed:
            await self._send_whole(exchange, answer.status, answered_headers(answer.headers), await answer.body())
            return
        self._telemetry.instruments.first_token.record(
            time.monotonic() - exchange.arrived, {"pool": exchange.candidate.pool if exchange.candidate else ""}
        )
        exchange.streaming = True
        await self._start(exchange, answer.status, answered_headers(answer.headers))
        end = StreamEnd()
        if data := end.feed(answer.first):
            await exchange.send({"type": "http.response.body", "body": data, "more_body": True})
        async for part in answer.rest():
            if data := end.feed(part):
                await exchange.send({"type": "http.response.body", "body": data, "more_body": True})
        if end.failed:
            fail(exchange.span, "the engine failed in the middle of the stream")
        elif not end.done:
            raise EngineError("The engine ended the stream before the answer was complete.")
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, exchange: Exchange, error: GatewayError) -> None:
        """Translate an error once: to a JSON answer, or, when the stream has begun, to its one last frame."""
        fail(exchange.span, error.message)
        if exchange.status:
            frame = error_frame(error) if exchange.streaming else b""
            exchange.status = error.status
            await exchange.send({"type": "http.response.body", "body": frame, "more_body": False})
            return
        headers = [(b"content-type", b"application/json")]
        if error.retry_after_s:
            headers.append((b"retry-after", str(max(1, round(error.retry_after_s))).encode()))
        await self._send_whole(exchange, error.status, headers, encode_json(error.to_body()))

    async def _send_whole(
        self, exchange: Exchange, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        await self._start(exchange, status, [*headers, (b"content-length", str(len(body)).encode())])
        await exchange.send({"type": "http.response.body", "body": body, "more_body": False})

    @staticmethod
    async def _start(exchange: Exchange, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange.status = status
        exchange.span.set_attribute("http.response.status_code", status)
        await exchange.send({"type": "http.response.start", "status": status, "headers": [*headers, *exchange.ours()]})

    def _record(self, exchange: Exchange) -> None:
        decision, candidate = exchange.decision, exchange.candidate
        labels = {
            "model": decision.model if decision else "",
            "pool": candidate.pool if candidate else "",
            "speculative": "on" if candidate and candidate.speculative else "off",
            "status": str(exchange.status),
        }
        self._telemetry.instruments.requests.add(1, labels)
        self._telemetry.instruments.duration.record(time.monotonic() - exchange.arrived, labels)


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The request's body, whole.

    Raises:
        BodyTooLargeError: It is, or says it is, longer than `limit` bytes.
    """
    too_large = BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes.")
    if headers.get("content-length", "").isdecimal() and int(headers["content-length"]) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)


def decision_attributes(decision: Decision) -> dict[str, Any]:
    """A decision as span attributes."""
    return {
        "specgate.model": decision.model,
        "specgate.pool": decision.pool or "",
        "specgate.speculative": decision.speculative,
        "specgate.classes": list(decision.classes),
        "specgate.reasons": [reason.advisory for reason in decision.reasons],
        "specgate.refused": decision.refused,
    }


def refusal(decision: Decision) -> str:
    """The message of a 422: what forbids every pool, and the way out."""
    causes = "; ".join(f"{reason.advisory}: {reason.summary}" for reason in decision.reasons)
    return (
        f"No pool of {decision.model!r} is allowed for this request ({', '.join(decision.classes)}). {causes}. "
        "POST the same body to /v1/route/explain for every reason and what would change it."
    )


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
