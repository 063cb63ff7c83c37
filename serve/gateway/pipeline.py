"""The request path: read, decide, send. Plain ASGI; Ray Serve only brings the requests here."""

import asyncio
import errno
import logging
import time
from collections.abc import Coroutine, Mapping
from itertools import count
from typing import Any

from policies import Decision, Policy, TrialTerms, choose, decide
from policies.classes import GUARDED, class_of_names
from serve.access.principal import ANONYMOUS, Authenticate, Principal, Tenant, everybody
from serve.config.gateway import GatewayConfig
from serve.dialects import custom_tools
from serve.dialects.api import DIALECTS, ContextOf, DialectApi, dropped_header
from serve.dialects.dialect import Dialect
from serve.errors import (
    INTERNAL,
    CustomToolsError,
    DeadlineError,
    EngineError,
    GatewayError,
    OutOfMemoryError,
    OverloadedError,
    PolicyConflictError,
)
from serve.gateway.deadline import Deadlines
from serve.guard.attempt_result import ResultSink
from serve.guard.history import repair_history
from serve.guard.plain import PlainPath
from serve.guard.rerun import GuardedPath, rerun_order
from serve.guard.transcript import NULL_TRANSCRIPTS, AnyTranscripts
from serve.http1.asgi import DIRECT, AsgiApp, Receive, Scope, Send
from serve.http1.turns import LONG_BODY_BYTES, Burst, beside, turn
from serve.limits.accounts import NULL_ACCOUNTS, AnyAccounts
from serve.limits.usage import Usage
from serve.load.live_load import NULL_LOAD, AnyLoad
from serve.proxy.attempts import Attempts, Held
from serve.proxy.exchange import CHAT, Api, Exchange
from serve.proxy.headers import engine_id_of, request_headers, request_id_of
from serve.proxy.journal import CLIENT_LEFT, Journal
from serve.proxy.outgoing import DRAFTS_HEADER
from serve.proxy.relay import relay
from serve.proxy.routed_request import Answering, Attribution, RoutedRequest
from serve.proxy.span_attributes import decision_attributes
from serve.proxy.upstream import Upstream
from serve.quarantine.live_policy import LivePolicy
from serve.request.body_reader import BodyReader, ReadRequest
from serve.request.completion import CHAT_PATH, COMPLETION_PATHS
from serve.request.patch import wants_usage
from serve.request.receive import read_body
from serve.routing.pool import Pool
from serve.shadow.copies import NULL_SHADOWS, NullShadows, Shadows
from serve.telemetry.instruments import Telemetry
from serve.telemetry.request_log import log_fault
from serve.telemetry.spans import fail, without_trace

log = logging.getLogger("ray.serve.specgate.gateway")

_TOLD_CAUSES = 3
_NO_MEMORY = "The gateway has no memory left for this request; try again, or with a shorter one."


class Gateway:
    """Routes requests to pools. `sink` gets what the guard finds, and `shadows` get copies of requests."""

    def __init__(
        self,
        config: GatewayConfig,
        live: LivePolicy,
        pools: Mapping[tuple[str, str], Pool],
        upstream: Upstream,
        telemetry: Telemetry,
        sink: ResultSink = lambda _: None,
        load: AnyLoad = NULL_LOAD,
        authenticate: Authenticate = everybody,
        accounts: AnyAccounts = NULL_ACCOUNTS,
        transcripts: AnyTranscripts = NULL_TRANSCRIPTS,
        shadows: Shadows | NullShadows = NULL_SHADOWS,
    ) -> None:
        self._shadows = shadows
        self._config = config
        self._authenticate = authenticate
        self._accounts = accounts
        self._live = live
        self._telemetry = telemetry
        self._continues_traces = config.telemetry.client_traces == "continue"
        self._ongoing = 0
        self._burst = Burst()
        self._deadlines = Deadlines(config.limits.request_timeout_s)
        self._reader = BodyReader(config)
        self.load = load
        self.journal = Journal()
        self._attempts = Attempts(config, pools, upstream, telemetry, load)
        self._attempts.adopt(live.policy.facts)
        self._guarded = GuardedPath(
            self._attempts, telemetry, sink, config.models, transcripts, lambda: live.policy, live.found, live.trusts
        )
        self._plain = PlainPath(self._attempts, telemetry, self._guarded.resumes, config.models, self._guarded.stalls)

    @property
    def policy(self) -> Policy:
        return self._live.policy

    def adopt(self, policy: Policy) -> None:
        """Puts another policy in force; requests under way keep their decision."""
        self._live.adopt(policy)
        self.load.adopt(policy)
        self._attempts.adopt(policy.facts)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Responds to one POST to `/v1/chat/completions` or `/v1/completions`.

        Whoever serves this app must cancel the call when the client leaves, so that no engine works for nobody. Our own
        listener and Ray Serve's both do.
        """
        return self.respond(CHAT, scope, receive, send)  # a coroutine around it would be entered whenever it goes on

    async def respond(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to one POST whose body is, or stands for, that of a chat or text completion.

        `api` is for this request alone, unless it is `CHAT`.
        """
        if self._burst.is_crowd():  # hundreds of clients may ask at the same moment
            await turn()
        headers = request_headers(scope["headers"])
        principal, refusal = self._caller(headers)
        continued = self._continues_traces and refusal is None
        with self._telemetry.request(scope["path"], headers, continued=continued) as span:
            if not continued:
                headers = without_trace(headers)
            direct = scope.get("extensions", {}).get(DIRECT)
            write = direct and direct.write
            path, request_id = api.path or scope["path"], request_id_of(headers)
            exchange = Exchange(path, headers, send, request_id, span, direct is not None, write, api, principal)
            if api is not CHAT:
                exchange.attribution.headers.update(api.response_headers(request_id))
            try:
                if refusal is not None:
                    await exchange.refuse(refusal)
                    return
                exchange.accept()
                if direct is not None and principal is not ANONYMOUS:
                    direct.belong_to(principal.tenant.name)
                self._admit()
                body = await read_body(receive, headers, self._config.limits.max_body_bytes)
                await self._serve(exchange, await api.decode(exchange, body))
            except GatewayError as error:
                await exchange.refuse(error)
            except asyncio.CancelledError:
                exchange.status = CLIENT_LEFT
                fail(span, "client_left", exchange.status)
                raise
            except BaseException as error:  # noqa: BLE001 - the last resort: the client gets an error, the log the place
                if _is_of_memory(error):
                    log.error("[%s] no memory is left for a request", exchange.request_id)
                    await exchange.refuse(OutOfMemoryError(_NO_MEMORY, retry_after_s=1.0))
                else:
                    log_fault(log, "a request failed", exchange.request_id)
                    await exchange.refuse(GatewayError(INTERNAL))
            finally:
                exchange.release()
                self._settle(exchange, scope["path"])

    def _caller(self, headers: Mapping[str, str]) -> tuple[Principal, GatewayError | None]:
        """Returns on whose behalf a request is made, and the error if it is refused: its span begins with that known.

        A refused one is no tenant's, unless the error names a key.
        """
        try:
            return self._authenticate(headers), None
        except GatewayError as error:
            refused = Principal(error.key_id, Tenant(error.tenant), frozenset(), ())
            return refused, error.with_traceback(None)  # or it and the frame that keeps it would hold each other

    def _settle(self, exchange: Exchange, path: str) -> None:
        """Charges, counts and logs a request that has ended."""
        exchange.charge.settle(exchange.status, exchange.span)
        served = exchange.attribution
        self._telemetry.ended(exchange.arrived_s, served.model, served.pool, served.speculative, exchange.status)
        ended = self.journal.add(exchange, path)
        if ended.cause:
            self._telemetry.failed(served.model, exchange.status, ended.cause)
        elif (answering := served.answering) is not None and answering.meter.usage is not None:
            self._count_answer(served, answering, answering.meter.usage)
        if self._telemetry.log.on and self._telemetry.log.wants(exchange.status, served.faults):
            self._telemetry.log.ended(ended.log_fields())

    def _count_answer(self, served: Attribution, answering: Answering, usage: Usage) -> None:
        """Counts how fast an answer came, whose length its engine has told."""
        candidate = answering.candidate
        if written := usage.worked(answering.meter.kept_tokens).output:
            took_s, speculative = time.monotonic() - answering.sent_s, "on" if candidate.speculative else "off"
            self._telemetry.answered(served.model, candidate.pool, speculative, served.request_class, written, took_s)

    async def read(self, body: bytes, headers: Mapping[str, str], principal: Principal) -> ReadRequest:
        """Returns what a body holds; a long one is read beside the event loop.

        Raises:
            GatewayError: The request is wrong.
        """
        with self._telemetry.step("features"):
            if len(body) > LONG_BODY_BYTES:
                return await beside(True, self._reader.read, body, headers, principal.may_use)
            return self._reader.read(body, headers, principal.may_use)

    async def _translated(self, exchange: Exchange, body: bytes) -> ReadRequest:
        """Returns what a body with custom tools holds, and makes the API one whose answers have their calls."""
        body, tools = await beside(len(body) > LONG_BODY_BYTES, custom_tools.decode, body)
        exchange.api = custom_tools.CustomToolsApi(tools)
        if tools.dropped:
            dropped = dropped_header(tuple(f"tools.{each}" for each in tools.dropped))
            exchange.attribution.headers[b"x-specgate-dropped"] = dropped.encode()
        return await self.read(body, exchange.headers, exchange.principal)

    def _admit(self) -> None:
        """Enforces the limit of ongoing requests: Ray Serve can't, because it does not see our listener's requests."""
        if self._ongoing >= self._config.max_ongoing_requests:
            message = f"This replica already handles {self._config.max_ongoing_requests} requests; try again shortly."
            raise OverloadedError(message, retry_after_s=self._config.limits.retry_after_s)

    async def _serve(self, exchange: Exchange, body: bytes) -> None:
        """Responds to a request whose body is complete; only such a one counts as ongoing, or heads would be enough."""
        self._admit()
        self._ongoing += 1
        try:
            try:
                read = await self.read(body, exchange.headers, exchange.principal)
            except CustomToolsError:
                read = await self._translated(exchange, body)
            decision, guarded = self._decide(exchange, read)
            completes = exchange.path in COMPLETION_PATHS  # what counts tokens has no price
            if completes:
                exchange.charge = await self._accounts.admit(
                    exchange.principal, decision, read, exchange.attribution.rate_headers, self._telemetry.step
                )
            if read.features.tool_history:
                await self._repair_history(read, decision.model)
            request = self._routed(exchange, read, decision, guarded=guarded)
            if completes:
                await self._respond(exchange, request)
                return
            async with self._accounts.passing(exchange.principal, decision.model, exchange.attribution.rate_headers):
                await self._respond(exchange, request)
        finally:
            self._ongoing -= 1

    def _decide(self, exchange: Exchange, read: ReadRequest) -> tuple[Decision, bool]:
        """Returns the decision on a request, for the log, the metrics and the client.

        The second value is whether the guard checks the answer.

        Raises:
            PolicyConflictError: No pool is allowed.
        """
        features = read.features
        with self._telemetry.step("decide"):
            decision = decide(self.policy, features, features.preference)
            guarded = self._is_guarded(exchange.path, decision)
            if exchange.path in COMPLETION_PATHS:  # the counting of tokens is no sample of a pool's answers
                order = self.load.order(decision, features, len(read.body))
                draw = self._live.draw(decision.model) if guarded else None
                decision = choose(decision, order, draw)
        exchange.attribution.decided(decision)
        exchange.attribution.request_class, _ = class_of_names(decision.classes)
        exchange.attribution.engine_id = engine_id_of(exchange.request_id, exchange.headers)
        self._telemetry.decided(decision.model, decision.pool or "", exchange.attribution.reasons)
        if exchange.span.is_recording():
            exchange.span.set_attributes(decision_attributes(exchange.request_id, decision))
        if decision.refused:
            raise PolicyConflictError(_refusal(decision))
        return decision, guarded

    def trial_terms(self, path: str, decision: Decision) -> TrialTerms | None:
        """Returns on which terms a request to a path may be a trial; None if nobody checks its answer."""
        return self._live.terms(decision.model) if self._is_guarded(path, decision) else None

    def _routed(self, exchange: Exchange, read: ReadRequest, decision: Decision, *, guarded: bool) -> RoutedRequest:
        """Returns the request as it goes to attempts."""
        return RoutedRequest(
            path=exchange.path,
            headers=exchange.headers,
            request_id=exchange.request_id,
            body=read.body,
            patch=read.patch,
            parsed=read.parsed,
            features=read.features,
            decision=decision,
            guarded=guarded,
            attempt_numbers=count(1),
            charge=exchange.charge,
            asker=exchange.asker(len(read.body)),
            attribution=exchange.attribution,
            wants_usage=wants_usage(read.parsed),
            sees_drafts=exchange.headers.get(DRAFTS_HEADER) == "true" and "observe" in exchange.principal.scopes,
        )

    async def _repair_history(self, read: ReadRequest, model: str) -> None:
        """Keeps a malformed call of an earlier turn from spoiling this one."""
        settings = self._config.models[model]
        with self._telemetry.step("history"):
            repair = await repair_history(read.patch, read.body, settings.guard.history, settings.grammar)
        if not repair.clean:
            self._telemetry.history(model, settings.guard.history, repair.arguments, repair.ids)

    async def _respond(self, exchange: Exchange, request: RoutedRequest) -> None:
        if request.features.stream:
            await self._send(exchange, request)
            return
        try:
            with self._deadlines.new():
                await self._send(exchange, request)
        except TimeoutError as error:
            exchange.charge.give_up()
            timeout_s = self._config.limits.request_timeout_s
            raise DeadlineError(f"No complete answer within {timeout_s:g} s.") from error

    async def _send(self, exchange: Exchange, request: RoutedRequest) -> None:
        if request.guarded:
            self._shadows.begins(request)
            try:
                await self._guarded.respond(exchange, request)
            finally:
                self._shadows.ends(request)
            return
        if request.decision.model in self._plain.models and request.path in COMPLETION_PATHS:
            await self._plain.respond(exchange, request)
            return
        on_try = exchange.attribution.tried
        async with Held() as held:
            candidates = request.decision.candidates
            attempt = await self._attempts.first_response(request, candidates, held, on_try)
            try:
                await relay(exchange, attempt, self._telemetry)
                return
            except EngineError:
                if attempt.response.is_stream or not attempt.response.broken:
                    raise
            await held.release()  # of a whole answer that broke off nothing is out: another engine may have one
            others_first = rerun_order(candidates, [attempt.candidate])
            attempt = await self._attempts.first_response(request, others_first, held, on_try)
            await relay(exchange, attempt, self._telemetry)

    def _is_guarded(self, path: str, decision: Decision) -> bool:
        """True if the guard checks the response; otherwise it passes untouched."""
        if path != CHAT_PATH or GUARDED.isdisjoint(decision.classes):
            return False
        return self._config.models[decision.model].guard.mode != "off"


def _refusal(decision: Decision) -> str:
    """Returns the message of a 422: what forbids every pool, as far as one can take it in, and the way out."""
    against = [reason for reason in decision.reasons if reason.effect == "forbid"] or decision.reasons
    causes = "; ".join(f"{reason.advisory}: {reason.summary}" for reason in against[:_TOLD_CAUSES])
    more = f", and {len(against) - _TOLD_CAUSES} more" if len(against) > _TOLD_CAUSES else ""
    is_assumed = any(reason.summary.endswith(" not known)") for reason in against)
    cure = " Facts of its engines are not known; its operator finds them with `specgate front`." if is_assumed else ""
    return (
        f"No pool of {decision.model!r} is allowed for this request ({', '.join(decision.classes)}).{cure} "
        f"{causes}{more}. POST the same body to /v1/route/explain for every reason and what would change it."
    )


def _is_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that no memory is left: to Python itself, the system or for another thread."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


def hot_routes(gateway: Gateway, context_of: ContextOf = lambda _: None) -> dict[str, AsgiApp]:
    """Returns the apps that respond to completions, by the path of their POST requests; they bypass the web framework.

    `context_of` returns the tokens of a model's context, given any of its names, if they are known.
    """

    def translating(dialect: Dialect) -> AsgiApp:
        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            await gateway.respond(DialectApi(dialect, context_of), scope, receive, send)

        return respond

    translated = {path: translating(dialect) for path, dialect in DIALECTS.items()}
    return {**dict.fromkeys(COMPLETION_PATHS, gateway), **translated}
