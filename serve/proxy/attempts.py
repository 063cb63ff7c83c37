"""Sends a request to its candidates, one after the other, until one of them responds."""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import NamedTuple

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from policies import Candidate
from policies.decide import FREE_SLOT
from serve.config.access import PRIORITIES
from serve.config.gateway import GatewayConfig
from serve.errors import DeadlineError, OverloadedError, PoolUnavailableError
from serve.limits.answer_meter import Meter
from serve.load.live_load import LiveLoad
from serve.load.sent import Sent
from serve.load.spec_report import LastFrames
from serve.proxy.outgoing import Pools
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.span_attributes import attempt_attributes, attempt_name, tell_beginning, tell_usage
from serve.proxy.upstream import Upstream, UpstreamResponse
from serve.request.beside import beside
from serve.request.completion import CompletionRequest
from serve.request.density import LONG_BODY_BYTES
from serve.routing.endpoint import Endpoint
from serve.routing.first_free import first_free
from serve.routing.hold import Hold
from serve.routing.pool import Pool
from serve.routing.prefix_index import blocks_of
from serve.routing.session_affinity import Affinity, session_key
from serve.stream.stages import Rename
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import fail, inject

# What is tried again. A pool's other replicas may have answers where one is unreachable or fails, but not where the
# engine says that it is busy: then only another pool is asked, and the last refusal goes to the client.
_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_SAME_POOL_MAY_ANSWER = {429: False, 500: True, 502: True, 503: True, 504: True}
_FIRST_CANDIDATE_TRIES = 2
_NO_WAIT_S = 0.001  # an idle slot is there sooner; recording costs microseconds, so only waits are


class Attempt(NamedTuple):
    """A response that has begun.

    Attributes:
        candidate: Sends it.
        response: The response itself.
        last_frames: Keeps its end, from which the load learns; None if nobody does.
        meter: Measures its usage; None where nobody counts.
        rename: Puts our name of the model into it; None if the engine has no other.
    """

    candidate: Candidate
    response: UpstreamResponse
    last_frames: LastFrames | None = None
    meter: Meter | None = None
    rename: Rename | None = None

    async def body(self, limit_bytes: int = sys.maxsize) -> bytes:
        """Returns the whole body of a response that does not stream.

        Args:
            limit_bytes: As of `UpstreamResponse.body`.

        Raises:
            EngineError: As of `UpstreamResponse.body`.
        """
        body = await self.response.body(limit_bytes)
        for stage in (self.last_frames, self.meter, self.rename):
            if stage is not None:
                body = stage.whole(body) if len(body) <= LONG_BODY_BYTES else await beside(True, stage.whole, body)
        return body


class _Left:
    """The tries that are left, best first; a candidate that may be tried twice is there twice."""

    __slots__ = ("_tries",)

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._tries = [candidates[0]] * (_FIRST_CANDIDATE_TRIES - 1) + [*candidates]

    def __bool__(self) -> bool:
        return bool(self._tries)

    @property
    def best(self) -> Candidate:
        return self._tries[0]

    @property
    def pools(self) -> list[str]:
        """Their pools, each once."""
        return list(dict.fromkeys([candidate.pool for candidate in self._tries]))

    def of_pool(self, pool: str) -> Candidate:
        """Returns the best candidate of a pool."""
        return next(candidate for candidate in self._tries if candidate.pool == pool)

    def take(self, candidate: Candidate) -> None:
        """Counts a try."""
        self._tries.remove(candidate)

    def drop(self, pools: Collection[str]) -> None:
        """Gives up pools."""
        self._tries = [candidate for candidate in self._tries if candidate.pool not in pools]


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
        self._pass_baggage = "baggage" in config.requests.pass_headers
        self._pools = pools
        self._outgoing = Pools(config, reports=load is not None)
        self._upstream = upstream
        self._telemetry = telemetry

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
        left = _Left(candidates)
        for number in count(1):
            counted = self._count(request, left.best, resources)
            began_s = time.monotonic()
            candidate, endpoint, hold = await self._reserve(request, left, resources, number - 1, on_try)
            if (waited_s := time.monotonic() - began_s) > _NO_WAIT_S:
                request.attribution.waited_s += waited_s
                priority = PRIORITIES[request.asker.rank]
                self._telemetry.waited(waited_s, request.decision.model, candidate.pool, priority)
            if counted is not None:
                counted.posted(candidate)
            try:
                attempt = await self._post(request, candidate, endpoint, hold, resources, counted)
            except _RETRIED as error:
                self._pools[request.decision.model, candidate.pool].forget(endpoint)
                self._add_fault(request, candidate.pool, error.code, error.message)
                if not left or number == self._max_attempts:
                    raise
            else:
                status = attempt.response.status
                if not _SAME_POOL_MAY_ANSWER.get(status, True):
                    left.drop((candidate.pool,))
                if status not in _SAME_POOL_MAY_ANSWER or not left or number == self._max_attempts:
                    return attempt
                self._add_fault(request, candidate.pool, str(status), f"the engine answered {status}")
            await resources.aclose()
            self._telemetry.retried(candidate.pool)
        raise AssertionError("the last attempt returns or raises")

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
        left: _Left,
        resources: AsyncExitStack,
        attempt: int,
        on_try: Callable[[Candidate], None] | None,
    ) -> tuple[Candidate, Endpoint, Hold]:
        """Reserves a slot for the best of the candidates that are left whose pool has one.

        Args:
            request: The request to send.
            left: Candidates; the one that is returned counts as tried, and those whose pools refused are dropped.
            resources: Keeps the slot.
            attempt: How often the request has been sent before.
            on_try: See `first_response`.

        Raises:
            GatewayError: No pool has a slot.
        """
        preferred = left.best
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
                    pools = left.pools
                if len(pools) == 1:
                    left.take(preferred)
                    span.set_attribute("specgate.pool", preferred.pool)
                    hold = first.reserve(affinity, request.asker)
                    return preferred, await resources.enter_async_context(hold), hold
                asked = [self._pools[model, pool] for pool in pools]
                slot = await first_free(asked, affinity, request.asker, resources)
                span.set_attribute("specgate.pool", pools[slot.number])
                if pools[slot.number] != preferred.pool:
                    span.set_attribute("specgate.reasons", [FREE_SLOT])
        except _RETRIED as error:
            self._telemetry.log.warn(request.request_id, ", ".join(pools), error.code, error.message)
            raise
        chosen = left.of_pool(pools[slot.number])
        if chosen is not preferred:
            self._telemetry.retried(preferred.pool)
            if on_try is not None:
                on_try(chosen)
                request.attribution.add_reason(FREE_SLOT)
        left.take(chosen)
        left.drop({pools[number] for number in slot.refused})
        return chosen, slot.endpoint, slot.hold

    async def _post(
        self,
        request: RoutedRequest,
        candidate: Candidate,
        endpoint: Endpoint,
        hold: Hold,
        resources: AsyncExitStack,
        counted: Sent | None,
    ) -> Attempt:
        """Sends the request to a replica; the response stays open until `resources` close."""
        number = next(request.attempt_numbers)
        patch, meter, rename = self._outgoing.outgoing(request, candidate)
        headers = self._outgoing.headers(request, endpoint, number)
        body = request.body
        if patch:
            body = patch.apply(body) if len(body) <= LONG_BODY_BYTES else await beside(True, patch.apply, body)
        span: Span = INVALID_SPAN
        if self._telemetry.traced:
            kind = self._outgoing.kind(request, candidate)
            about = attempt_attributes(request, candidate, endpoint.url, kind, number)
            span = resources.enter_context(self._telemetry.step(attempt_name(request), about, SpanKind.CLIENT))
            inject(headers)
        if not self._pass_baggage:  # injected with the trace, but it holds whatever the client put there
            headers.pop("baggage", None)
        if meter is not None and request.charge is not None:
            hold.turn.used = partial(request.charge.used, meter)
        sent_s = time.monotonic()
        try:
            response = await resources.enter_async_context(self._upstream.post(endpoint, request.path, body, headers))
        except _RETRIED as error:  # caught before it passes through the span
            fail(span, error.code, error.status)
            raise
        if meter is not None:
            meter.status = response.status
        if span.is_recording():
            tell_beginning(span, response, time.monotonic() - sent_s)
            if meter is not None:
                resources.callback(tell_usage, span, meter)
        last_frames = None
        if counted is not None:
            counted.response = last_frames = LastFrames()
        return Attempt(candidate, response, last_frames, meter, rename)


def _prompt_blocks(request: CompletionRequest) -> tuple[int, ...]:
    """Returns the blocks of a request's prompt, as the client wrote it."""
    return blocks_of([bytes(request.prompt), *(bytes(message.content) for message in request.messages or ())])
