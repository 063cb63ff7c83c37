"""Sends a request to its candidates, one after the other, until one of them responds."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from policies import Candidate, Decision, RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.errors import DeadlineError, OverloadedError, PoolUnavailableError, encode_json
from serve.limits.charge import Charge
from serve.load.live_load import LiveLoad
from serve.load.sent import Sent
from serve.proxy.exchange import forwarded_headers
from serve.proxy.model_name import ModelName
from serve.proxy.upstream import Upstream, UpstreamResponse
from serve.request.completion import NONE, OPT_OUT, REPORT, CompletionRequest, with_member, with_xargs
from serve.request.reasoning_field import with_reasoning_as
from serve.request.usage_option import leaves_usage_out, with_usage
from serve.routing.endpoint import SLOT_HEADER, Endpoint
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.first_free import first_free
from serve.routing.pool import Pool
from serve.routing.prefix_index import blocks_of
from serve.routing.session_affinity import Affinity, session_key
from serve.telemetry.instruments import Telemetry, fail, inject

log = logging.getLogger("ray.serve.specgate.proxy")

_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_NO_WAIT_S = 0.001  # an idle slot is there sooner; recording costs microseconds, so only waits are
_BUSY = 429  # the engine's own back-pressure: not for another replica of its pool; the last one goes to the client


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request whose decision is made.

    Attributes:
        path: The HTTP path.
        headers: The client's, by lower-case name.
        body: For the engine: history repaired, our own fields removed.
        parsed: The body as the client sent it, parsed.
        guarded: True if the guard checks the response, so that our parsers must report what they can't read.
        charge: Measures the attempts; None where nobody counts usage.
        asker: On whose behalf slots are asked for.
        attempt_numbers: Numbers of the attempts to come, reruns included.
    """

    path: str
    headers: Mapping[str, str]
    request_id: str
    body: bytes
    parsed: CompletionRequest
    features: RequestFeatures
    decision: Decision
    guarded: bool
    charge: Charge | None = None
    asker: Asker = ANONYMOUS
    attempt_numbers: Iterator[int] = field(default_factory=partial(count, 1))


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
        self._own_pools = {(model, name) for model, _, name, pool in config.each_pool() if pool.kind != "remote"}

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
            candidate, endpoint = await self._reserve(request, remaining, resources, sent - 1, on_try)
            if (waited_s := time.monotonic() - began_s) > _NO_WAIT_S:
                self._telemetry.waited(waited_s, request.decision.model, candidate.pool)
            if counted is not None:
                counted.posted(candidate)
            try:
                response = await self._post(request, candidate, endpoint, resources)
            except _RETRIED as error:
                self._pools[request.decision.model, candidate.pool].forget(endpoint)
                log.warning("request %s: pool %s: %s", request.request_id, candidate.pool, error)
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
            await resources.aclose()
            self._telemetry.instruments.retries.add(candidate.pool)
        return Attempt(candidate, response)

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
    ) -> tuple[Candidate, Endpoint]:
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
            with self._telemetry.step("choose_replica", pool=preferred.pool):
                if not first.ready:
                    pools = list(dict.fromkeys([candidate.pool for candidate in remaining]))
                if len(pools) == 1:
                    remaining.pop(0)
                    return preferred, await resources.enter_async_context(first.reserve(affinity, request.asker))
                asked = [self._pools[model, pool] for pool in pools]
                slot = await first_free(asked, affinity, request.asker, resources)
        except _RETRIED as error:
            log.warning("request %s: pools %s: %s", request.request_id, ", ".join(pools), error)
            raise
        chosen = next(candidate for candidate in remaining if candidate.pool == pools[slot.number])
        if chosen is not preferred:
            log.info("request %s: pool %s has no slot, %s has", request.request_id, preferred.pool, chosen.pool)
            self._telemetry.instruments.retries.add(preferred.pool)
            if on_try is not None:
                on_try(chosen)
        refused = {pools[number] for number in slot.refused}
        remaining.remove(chosen)
        remaining[:] = [candidate for candidate in remaining if candidate.pool not in refused]
        return chosen, slot.endpoint

    async def _post(
        self, request: RoutedRequest, candidate: Candidate, endpoint: Endpoint, resources: AsyncExitStack
    ) -> UpstreamResponse:
        """Sends the request to a replica; the response stays open until `resources` close."""
        headers = forwarded_headers(request.headers, endpoint.key, self._pass_headers)
        # Engines mix up requests that share an id, so that each attempt has its own.
        headers["x-request-id"] = f"{request.request_id}-{next(request.attempt_numbers)}"
        if endpoint.slot:
            headers[SLOT_HEADER] = endpoint.slot
        xargs = self._xargs(request, candidate)
        body = with_xargs(request.body, request.parsed, xargs) if xargs else request.body
        model = request.decision.model
        served = self._served_names.get((model, candidate.pool))
        if served:
            body = with_member(body, "model", encode_json(served))
        if reasoning := self._reasoning_fields.get((model, candidate.pool)):
            body = with_reasoning_as(body, reasoning)
        takes_usage_out = request.charge is not None and leaves_usage_out(request.parsed)
        if takes_usage_out or (self._load is not None and self._may_ask_usage(request, candidate)):
            body = with_usage(body, request.parsed)
        span = resources.enter_context(self._telemetry.step("upstream", pool=candidate.pool))
        inject(headers)
        if not self._pass_baggage:  # injected with the trace, but it holds whatever the client put there
            headers.pop("baggage", None)
        meter = None
        if request.charge is not None:
            meter = request.charge.attempt(candidate.pool, candidate.speculative, takes_usage_out)
        try:
            response = await resources.enter_async_context(self._upstream.post(endpoint, request.path, body, headers))
        except _RETRIED as error:  # caught before it passes through the span
            span.record_exception(error)
            fail(span, error.message)
            raise
        if meter is not None:
            response.meter(meter)
        if served:
            response.pass_through(ModelName(served, model))
        return response

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
