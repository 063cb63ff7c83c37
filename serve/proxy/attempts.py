"""Sends a request to its candidates, one after the other, until one of them responds."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from itertools import count
from typing import NamedTuple

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from policies import Candidate
from serve.config.access import PRIORITIES
from serve.config.gateway import GatewayConfig
from serve.errors import DeadlineError, OverloadedError, PoolUnavailableError, encode_json
from serve.load.live_load import LiveLoad
from serve.load.sent import Sent
from serve.proxy.headers import forwarded_headers
from serve.proxy.model_name import ModelName
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.span_attributes import attempt_attributes, attempt_name, tell_beginning, tell_usage
from serve.proxy.upstream import Upstream
from serve.proxy.upstream_response import UpstreamResponse
from serve.request.completion import NONE, OPT_OUT, REPORT, CompletionRequest, with_member, with_xargs
from serve.request.reasoning_field import with_reasoning_as
from serve.request.usage_option import leaves_usage_out, with_usage
from serve.routing.endpoint import SLOT_HEADER, Endpoint
from serve.routing.first_free import first_free
from serve.routing.hold import Hold
from serve.routing.pool import Pool
from serve.routing.prefix_index import blocks_of
from serve.routing.session_affinity import Affinity, session_key
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import fail, inject

_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_NO_WAIT_S = 0.001  # an idle slot is there sooner; recording costs microseconds, so only waits are
_BUSY = 429  # the engine's own back-pressure: not for another replica of its pool; the last one goes to the client


class Attempt(NamedTuple):
    """A response that has begun, and the candidate that sends it."""

    candidate: Candidate
    response: UpstreamResponse


class Attempts:
    """Sends requests to pools.

    Args:
        config: The limits, and which pools run engines of ours.
        pools: The pools by model and pool name.
        upstream: HTTP to the replicas.
        telemetry: Spans and metrics.
        load: Counts what is under way; None if nobody wants to know.
    """

    def __init__(
        self,
        config: GatewayConfig,
        pools: Mapping[tuple[str, str], Pool],
        upstream: Upstream,
        telemetry: Telemetry,
        load: LiveLoad | None = None,
    ) -> None:
        self._load = load
        self._max_attempts = config.limits.max_attempts
        self._pass_headers = config.requests.pass_headers
        self._pass_baggage = "baggage" in self._pass_headers
        self._pools = pools
        self._upstream = upstream
        self._telemetry = telemetry
        self._served_names = {
            (model, name): pool.served_name for model, _, name, pool in config.each_pool() if pool.served_name
        }
        self._reasoning_fields = {
            (model, name): pool.reasoning_field for model, _, name, pool in config.each_pool() if pool.reasoning_field
        }
        self._rewritten = {name for name, model in config.models.items() if model.guard.mode in ("heal", "strict")}
        self._kinds = {(model, name): pool.kind for model, _, name, pool in config.each_pool()}
        self._own_pools = {key for key, kind in self._kinds.items() if kind != "remote"}

    async def first_response(
        self,
        request: RoutedRequest,
        candidates: Sequence[Candidate],
        resources: AsyncExitStack,
        on_try: Callable[[Candidate], None] | None = None,
    ) -> Attempt:
        """Returns the first response that begins.

        A pool without capacity is skipped, which does not count as an attempt.

        Args:
            request: The request to send.
            candidates: Where to send it, best first.
            resources: Empty; the response can be read until it closes.
            on_try: Called with each candidate that is tried.

        Raises:
            GatewayError: No candidate responded.
        """
        remaining = _order(candidates)
        for sent in count(1):
            counted = self._count(request, remaining[0], resources)
            began_s = time.monotonic()
            candidate, endpoint, hold = await self._reserve(request, remaining, resources, sent - 1, on_try)
            if (waited_s := time.monotonic() - began_s) > _NO_WAIT_S:
                request.attribution.waited_s += waited_s
                priority = PRIORITIES[request.asker.rank]
                self._telemetry.waited(waited_s, request.decision.model, candidate.pool, priority)
            if counted is not None:
                counted.posted(candidate)
            try:
                response = await self._post(request, candidate, endpoint, hold, resources)
            except _RETRIED as error:
                self._pools[request.decision.model, candidate.pool].forget(endpoint)
                self._add_fault(request, candidate.pool, error.code, error.message)
                if not remaining or sent == self._max_attempts:
                    raise
            else:
                if counted is not None:
                    response.keep_last()
                    counted.response = response
                if response.status == _BUSY:
                    remaining[:] = [other for other in remaining if other.pool != candidate.pool]
                if response.status not in _RETRIED_STATUS or not remaining or sent == self._max_attempts:
                    break
                self._add_fault(request, candidate.pool, str(response.status), f"the engine answered {response.status}")
            await resources.aclose()
            self._telemetry.retried(candidate.pool)
        return Attempt(candidate, response)

    def _add_fault(self, request: RoutedRequest, pool: str, kind: str, detail: str) -> None:
        self._telemetry.log.add_fault(request.attribution.faults, request.request_id, pool, kind, detail)

    def _count(self, request: RoutedRequest, candidate: Candidate, resources: AsyncExitStack) -> Sent | None:
        """Counts a request that is on its way, until `resources` close."""
        if self._load is None:
            return None
        sent = self._load.begin(request.decision, request.features, candidate, len(request.body))
        resources.callback(sent.end)
        return sent

    async def _reserve(
        self,
        request: RoutedRequest,
        remaining: list[Candidate],
        resources: AsyncExitStack,
        attempt: int,
        on_try: Callable[[Candidate], None] | None,
    ) -> tuple[Candidate, Endpoint, Hold]:
        """Reserves a slot for the best of the remaining candidates whose pool has one.

        Args:
            request: The request to send.
            remaining: Candidates, best first; the one that is returned is removed, and those whose pools refused.
            resources: Keeps the slot.
            attempt: How often the request has been sent before.
            on_try: See `first_response`.

        Raises:
            GatewayError: No pool has a slot.
        """
        preferred = remaining[0]
        if on_try is not None:
            on_try(preferred)
        affinity = Affinity(
            partial(session_key, request.headers, request.features, attempt), partial(_prompt_blocks, request.parsed)
        )
        model = request.decision.model
        first = self._pools[model, preferred.pool]
        pools = [preferred.pool]
        try:
            with self._telemetry.step("slot") as span:
                if not first.ready:
                    pools = list(dict.fromkeys([candidate.pool for candidate in remaining]))
                if len(pools) == 1:
                    remaining.pop(0)
                    span.set_attribute("specgate.pool", preferred.pool)
                    hold = first.reserve(affinity, request.asker)
                    return preferred, await resources.enter_async_context(hold), hold
                asked = [self._pools[model, pool] for pool in pools]
                slot = await first_free(asked, affinity, request.asker, resources)
                span.set_attribute("specgate.pool", pools[slot.number])
        except _RETRIED as error:
            self._telemetry.log.warn(request.request_id, ", ".join(pools), error.code, error.message)
            raise
        chosen = next(candidate for candidate in remaining if candidate.pool == pools[slot.number])
        if chosen is not preferred:
            self._telemetry.retried(preferred.pool)
            if on_try is not None:
                on_try(chosen)
        refused = {pools[number] for number in slot.refused}
        remaining.remove(chosen)
        remaining[:] = [candidate for candidate in remaining if candidate.pool not in refused]
        return chosen, slot.endpoint, slot.hold

    async def _post(
        self, request: RoutedRequest, candidate: Candidate, endpoint: Endpoint, hold: Hold, resources: AsyncExitStack
    ) -> UpstreamResponse:
        """Sends the request to a replica; the response stays open until `resources` close."""
        headers = forwarded_headers(request.headers, endpoint.key, self._pass_headers)
        # Engines mix up requests that share an id, so that each attempt has its own.
        number = next(request.attempt_numbers)
        headers["x-request-id"] = f"{request.attribution.engine_id}-{number}"
        if endpoint.slot:
            headers[SLOT_HEADER] = endpoint.slot
        measured = request.features.stream and request.charge is not None
        takes_usage_out = measured and leaves_usage_out(request.parsed)
        body = self._body(request, candidate, takes_usage_out)
        span: Span = INVALID_SPAN
        if self._telemetry.traced:
            span = resources.enter_context(self._span(request, candidate, endpoint, number))
            inject(headers)
        if not self._pass_baggage:  # injected with the trace, but it holds whatever the client put there
            headers.pop("baggage", None)
        meter = None
        if request.charge is not None:
            meter = request.charge.attempt(candidate.pool, candidate.speculative, takes_usage_out)
            hold.turn.used = partial(request.charge.used, meter)
        sent_s = time.monotonic()
        try:
            response = await resources.enter_async_context(self._upstream.post(endpoint, request.path, body, headers))
        except _RETRIED as error:  # caught before it passes through the span
            fail(span, error.code, error.status)
            raise
        if meter is not None:
            response.meter(meter)
        if span.is_recording():
            tell_beginning(span, response, time.monotonic() - sent_s)
            if meter is not None:
                resources.callback(tell_usage, span, meter)
        model = request.decision.model
        if served := self._served_names.get((model, candidate.pool)):
            response.pass_through(ModelName(served, model))
        return response

    def _span(
        self, request: RoutedRequest, candidate: Candidate, endpoint: Endpoint, number: int
    ) -> AbstractContextManager[Span]:
        kind = self._kinds[request.decision.model, candidate.pool]
        about = attempt_attributes(request, candidate, endpoint.url, kind, number)
        return self._telemetry.step(attempt_name(request), about, SpanKind.CLIENT)

    def _body(self, request: RoutedRequest, candidate: Candidate, takes_usage_out: bool) -> bytes:
        """Returns the request as its engine is to read it."""
        pool = request.decision.model, candidate.pool
        xargs = self._xargs(request, candidate)
        body = with_xargs(request.body, request.parsed, xargs) if xargs else request.body
        if served := self._served_names.get(pool):
            body = with_member(body, "model", encode_json(served))
        if reasoning := self._reasoning_fields.get(pool):
            body = with_reasoning_as(body, reasoning)
        if takes_usage_out or (self._load is not None and self._may_ask_usage(request, candidate)):
            body = with_usage(body, request.parsed)
        return body

    def _may_ask_usage(self, request: RoutedRequest, candidate: Candidate) -> bool:
        """Returns True if an engine of ours may report on a stream's drafts although the client does not want usage.

        The report comes with the usage, and only a guard that writes the stream's end itself leaves that out again.
        """
        model = request.decision.model
        return (
            request.guarded
            and candidate.speculative
            and request.features.stream
            and request.parsed.stream_options is NONE
            and (model, candidate.pool) in self._own_pools
            and model in self._rewritten
        )

    def _xargs(self, request: RoutedRequest, candidate: Candidate) -> dict[str, int]:
        """Returns our arguments for the engine; empty for most requests."""
        xargs: dict[str, int] = {}
        if candidate.opt_out:
            xargs |= OPT_OUT
        if request.guarded and (request.decision.model, candidate.pool) in self._own_pools:
            xargs |= REPORT
        return xargs


def _order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the first candidate twice, because another replica of its pool may respond, then the others."""
    return [candidates[0], *candidates]


def _prompt_blocks(request: CompletionRequest) -> tuple[int, ...]:
    """Returns the blocks of a request's prompt, as the client wrote it."""
    return blocks_of([bytes(request.prompt), *(bytes(message.content) for message in request.messages or ())])
