"""The request path: parse, decide, find an answer, relay it. Plain ASGI; Ray Serve only brings the requests here."""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

from policies import Decision, Policy, RequestFeatures, decide, explain
from policies.classes import GROUPS
from serve.config.gateway import GatewayConfig
from serve.config.guard import GuardConfig
from serve.errors import DeadlineError, GatewayError, ModelNotFoundError, OverloadedError, PolicyConflictError
from serve.gateway.telemetry import decision_attributes
from serve.guard.attempt_result import ResultSink, ignore
from serve.guard.history import repair_body
from serve.guard.path import GuardedPath
from serve.http1.asgi import FRONT, Receive, Scope, Send, read_body
from serve.live_policy import LivePolicy
from serve.proxy.attempts import Attempts
from serve.proxy.exchange import Exchange
from serve.proxy.headers import request_headers
from serve.proxy.relay import relay
from serve.proxy.upstream import Upstream
from serve.request.completion import Asked, read
from serve.request.features import features_of
from serve.routing.pool import Route
from serve.telemetry.instruments import Telemetry

log = logging.getLogger("ray.serve.specgate.gateway")


_CHAT = "/v1/chat/completions"


_GUARDED = frozenset((*GROUPS["tools"], *GROUPS["json"]))  # answers in which right can be told from broken


class Gateway:
    """Routes requests to pools.

    Args:
        config: The gateway's configuration.
        live: What is safe at present.
        routes: The pools by model and pool name.
        upstream: HTTP to the replicas.
        telemetry: Spans and metrics.
        sink: Gets what the guard finds.
    """

    def __init__(
        self,
        config: GatewayConfig,
        live: LivePolicy,
        routes: Mapping[tuple[str, str], Route],
        upstream: Upstream,
        telemetry: Telemetry,
        sink: ResultSink = ignore,
    ) -> None:
        self._config, self._live, self._telemetry = config, live, telemetry
        self._ongoing = 0
        self._attempts = Attempts(config, routes, upstream, telemetry)
        self._guarded = GuardedPath(
            self._attempts, telemetry, sink, {name: model.grammar for name, model in config.models.items()}
        )
        self._guards = {name: model.guard for name, model in config.models.items() if model.guard.mode != "off"}

    @property
    def policy(self) -> Policy:
        """By which it decides at present."""
        return self._live.policy

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on; requests under way keep the decision they have."""
        self._live.adopt(policy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one POST to `/v1/chat/completions` or `/v1/completions`.

        Whoever serves this app cancels the call when the client leaves: the engine must not work for nobody. Our own
        listener and Ray Serve's both do.
        """
        headers = request_headers(scope["headers"])
        path = scope["path"]
        with self._telemetry.request(f"POST {path}", headers) as span:
            request_id = headers.get("x-request-id") or f"{random.getrandbits(128):032x}"
            front = scope.get("extensions", {}).get(FRONT)
            write = front and front.get("write")
            exchange = Exchange(path, headers, send, request_id, span, front is not None, write)
            self._ongoing += 1
            try:
                self._admit()
                exchange.body = await read_body(receive, headers, self._config.limits.max_body_bytes)
                await self._answer(exchange)
            except GatewayError as error:
                await exchange.refuse(error)
            except asyncio.CancelledError:
                exchange.status = 499  # nginx's number for a client that left
                raise
            except Exception:  # the last resort: the client gets an error, the log gets the traceback
                log.exception("request %s failed", exchange.request_id)
                await exchange.refuse(GatewayError("Internal error; the gateway's log knows more."))
            finally:
                self._ongoing -= 1
                self._record(exchange)

    def _admit(self) -> None:
        """Refuse what is beyond the limit: Ray Serve, whose limit it is, does not see the requests of our listener."""
        if self._ongoing > self._config.max_ongoing_requests:
            message = f"This replica already handles {self._config.max_ongoing_requests} requests; try again shortly."
            raise OverloadedError(message, None, None, self._config.limits.retry_after_s)

    def explain(self, body: bytes, headers: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """The decision for a request and what its evidence is, without the engine; the same code as for a real one."""
        _, features = self._read(body, headers)
        decision = decide(self.policy, features, features.wish)
        return explain(self.policy, features, decision), decision.evidence

    def _read(self, body: bytes, headers: Mapping[str, str]) -> tuple[Asked, RequestFeatures]:
        with self._telemetry.step("features"):
            asked = read(body)
            features = features_of(asked, headers, self._thinking_default)
            model = self._config.resolve(features.model)
            if model is None:
                raise ModelNotFoundError.unknown(features.model, self._config.models)
            return asked, features.of_model(model)

    def _decide(self, features: RequestFeatures) -> Decision:
        with self._telemetry.step("decide") as span:
            decision = self._live.decide(features)
            if span.is_recording():
                span.set_attributes(decision_attributes(decision))
        return decision

    def _thinking_default(self, model: str) -> bool:
        name = self._config.resolve(model)
        return name is not None and self._config.models[name].thinking

    async def _answer(self, exchange: Exchange) -> None:
        exchange.asked, exchange.features = self._read(exchange.body, exchange.headers)
        exchange.decision = self._decide(exchange.features)
        if exchange.span.is_recording():
            exchange.span.set_attributes(decision_attributes(exchange.decision))
        if exchange.decision.refused:
            raise PolicyConflictError(refusal(exchange.decision))
        if exchange.features.tool_history:
            self._repair_history(exchange, exchange.decision.model)
        if exchange.features.stream:
            await self._send(exchange, exchange.decision)
            return
        limit = self._config.limits.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._send(exchange, exchange.decision)
        except TimeoutError as error:
            raise DeadlineError(f"No complete answer within {limit:g} s.") from error

    def _repair_history(self, exchange: Exchange, model: str) -> None:
        """See to it that a malformed call of an earlier turn does not spoil this one."""
        settings = self._config.models[model]
        exchange.body, found = repair_body(
            exchange.body, settings.guard.history, kimi_ids=settings.grammar == "kimi_k2"
        )
        if not found.clean:
            log.info("request %s: history: %d malformed calls, %d ids", exchange.request_id, found.arguments, found.ids)
            self._telemetry.history(model, settings.guard.history, found.arguments, found.ids)

    async def _send(self, exchange: Exchange, decision: Decision) -> None:
        guard = self._guard_of(exchange, decision)
        if guard is not None:
            exchange.guarded = True
            await self._guarded.answer(exchange, decision, guard)
            return
        async with self._attempts.answer(exchange, decision.candidates) as answer:
            await relay(exchange, answer, self._telemetry)

    def _guard_of(self, exchange: Exchange, decision: Decision) -> GuardConfig | None:
        """The guard's settings for a request; None if its answer passes untouched."""
        if exchange.path != _CHAT or _GUARDED.isdisjoint(decision.classes):
            return None
        return self._guards.get(decision.model)

    def _record(self, exchange: Exchange) -> None:
        decision, candidate = exchange.decision, exchange.candidate
        self._telemetry.ended(
            exchange.arrived,
            decision.model if decision else "",
            candidate.pool if candidate else "",
            "on" if candidate and candidate.speculative else "off",
            exchange.status,
        )


def refusal(decision: Decision) -> str:
    """The message of a 422: what forbids every pool, and the way out."""
    causes = "; ".join(f"{reason.advisory}: {reason.summary}" for reason in decision.reasons)
    return (
        f"No pool of {decision.model!r} is allowed for this request ({', '.join(decision.classes)}). {causes}. "
        "POST the same body to /v1/route/explain for every reason and what would change it."
    )
