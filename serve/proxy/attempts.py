"""Sends a request to its candidates, one after the other, until one of them responds."""

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from itertools import count
from types import CoroutineType
from typing import Any, TypeVar

from msgspec import Struct
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from policies import Candidate, PoolFacts
from policies.decide import FREE_SLOT
from serve.config.access import PRIORITIES
from serve.config.gateway import GatewayConfig
from serve.errors import DeadlineError, EngineError, OverloadedError, PoolUnavailableError
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.load.live_load import AnyLoad, AnySent
from serve.proxy.outgoing import OutgoingRequests
from serve.proxy.routed_request import Answering, RoutedRequest
from serve.proxy.span_attributes import attempt_attributes, attempt_name, tell_beginning, tell_usage
from serve.proxy.upstream import Upstream, UpstreamResponse
from serve.request.completion import is_several
from serve.routing.first_free import first_free
from serve.routing.pool import NOWHERE, Affinity, Endpoint, Hold, Pool, session_key
from serve.routing.prefix_placement import blocks_of
from serve.stream.ending import refusal_in
from serve.stream.line import Stage
from serve.stream.stages import TokenIds
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import fail, inject

# What is tried again: errors, and statuses with whether the pool may answer all the same. It may where a replica is
# unreachable or fails; where the engine says that it is busy, or has not the model, others are asked, and the last
# refusal is sent.
_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_NOT_FOUND = 404
_RETRIED_STATUSES = {_NOT_FOUND: False, 429: False, 500: True, 502: True, 503: True, 504: True}
_OK = 200
_LOWEST_SERVER_ERROR = 500
_ADDRESSES_OF_A_POOL = 2  # that may fail before other pools are asked
_NO_WAIT_S = 0.001  # an idle slot is there sooner; recording costs microseconds, so only waits are
T = TypeVar("T")


class Attempt(Struct, frozen=True):
    """A response that has begun, and the stages that it passes first.

    Attributes:
        ids: Takes the ids of its tokens out, if we have asked for them.
        stages: All that its frames pass first, in their order.
        several: As of `End`.
    """

    candidate: Candidate
    response: UpstreamResponse
    ids: TokenIds | None = None
    stages: Sequence[Stage] = ()
    several: bool = False

    async def body(self, max_bytes: int = sys.maxsize) -> bytes:
        """Returns the whole body of a response that does not stream.

        Raises:
            EngineError: As of `UpstreamResponse.body`.
        """
        body = await self.response.body(max_bytes)
        return await beside(True, self._through, body) if len(body) > LONG_BODY_BYTES else self._through(body)

    def _through(self, body: bytes) -> bytes:
        for stage in self.stages:
            body = stage.whole(body)
        return body


class _Slot(Struct, frozen=True):
    """A slot of an engine, held for one attempt."""

    candidate: Candidate
    pool: Pool
    endpoint: Endpoint
    hold: Hold


OnTry = Callable[[Candidate], object]
Ask = Callable[[str, bytes], Awaitable[bytes]]


class _Left(list[Candidate]):
    """The tries that are left, best first; a candidate that may be tried twice is there twice."""

    __slots__ = ()

    @property
    def pools(self) -> list[str]:
        """Their pools, each once."""
        return list(dict.fromkeys([candidate.pool for candidate in self]))

    def of_pool(self, pool: str) -> Candidate:
        """Returns the best candidate of a pool."""
        return next(candidate for candidate in self if candidate.pool == pool)

    def put_last(self, pool: str) -> None:
        """Tries a pool's candidates behind all others."""
        self.sort(key=lambda candidate: candidate.pool == pool)

    def drop(self, pools: Collection[str]) -> None:
        """Gives up pools."""
        self[:] = [candidate for candidate in self if candidate.pool not in pools]


class Held(AbstractAsyncContextManager["Held"]):
    """What an attempt holds: contexts that were entered one after the other. They end with this one, the newest first;
    none of them swallows an exception.

    `AsyncExitStack` in its place costs a short answer 3 % of what Python executes.
    """

    __slots__ = ("_exits",)

    def __init__(self) -> None:
        self._exits: list[Callable[..., Any]] = []

    def enter_now(self, context: AbstractContextManager[T]) -> T:
        """Enters a context that is not awaited, and returns what it yields."""
        entered = context.__enter__()
        self._exits.append(context.__exit__)
        return entered

    def keep(self, context: AbstractAsyncContextManager[object]) -> None:
        """Takes over a context that was entered already."""
        self._exits.append(context.__aexit__)

    def at_end(self, call: Callable[[], object]) -> None:
        """Has something called when all that is held later has ended."""
        self._exits.append(lambda *_: call())

    async def release(self) -> None:
        """Ends all that is held now."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> "Held":
        return self

    async def __aexit__(self, *error: Any) -> None:
        exits = self._exits
        try:
            while exits:
                ended = exits.pop()(*error)
                if type(ended) is CoroutineType:
                    await ended
        finally:
            if exits:  # whatever the one before them raised
                await self.__aexit__(*error)


class Attempts:
    """Sends requests to pools."""

    def __init__(
        self,
        config: GatewayConfig,
        pools: Mapping[tuple[str, str], Pool],
        upstream: Upstream,
        telemetry: Telemetry,
        load: AnyLoad,
    ) -> None:
        self._load = load
        self._max_attempts = config.limits.max_attempts
        self._pass_baggage = "baggage" in config.requests.pass_headers
        self._pools = pools
        self._outgoing = OutgoingRequests(config, reports=load.learns)
        self._upstream = upstream
        self._telemetry = telemetry

    def adopt(self, facts: Iterable[PoolFacts]) -> None:
        """Takes what is known of the pools' engines now."""
        self._outgoing.adopt(facts)

    async def first_response(
        self,
        request: RoutedRequest,
        candidates: Sequence[Candidate],
        held: Held,
        on_try: OnTry = lambda _: None,
    ) -> Attempt:
        """Returns the first response that begins.

        A pool without capacity is skipped, which does not count as an attempt. `held` must be empty; the response can
        be read until it is released. `on_try` is called with each candidate that is tried.

        Raises:
            GatewayError: No candidate responded.
        """
        left = _Left([*candidates[:1], *candidates])  # the first one may be tried twice
        failed: list[_Slot] = []
        for number in count(1):
            sent = self._load.begin(request.decision, request.features, left[0], len(request.body))
            held.at_end(sent.end)
            slot = await self._slot(request, left, held, failed, on_try)
            sent.posted(slot.candidate)
            pool = slot.candidate.pool
            try:
                attempt = await self._post(request, slot, held, sent)
            except _RETRIED as error:
                slot.pool.forget(slot.endpoint)
                why = f"{slot.endpoint.url}: {error.__cause__ or error.message}"  # a client need not know
                self._add_fault(request, pool, error.code, why)
                failed.append(slot)
                if not self._tries_again(request, slot, failed, left, number):
                    raise
            else:
                status = attempt.response.status
                if status not in _RETRIED_STATUSES:
                    # Another replica has answered: it was not the request.
                    for each in failed if status < _LOWEST_SERVER_ERROR else ():
                        each.pool.forget(each.endpoint)
                    return attempt
                if _RETRIED_STATUSES[status] or status == _NOT_FOUND:
                    failed.append(slot)
                if not _RETRIED_STATUSES[status]:
                    left.drop((pool,))
                if not self._tries_again(request, slot, failed, left, number):
                    return attempt
                self._add_fault(request, pool, str(status), f"{slot.endpoint.url}: the engine answered {status}")
            await held.release()
            self._telemetry.retried(pool)
        raise AssertionError("the last attempt returns or raises")

    def _tries_again(
        self, request: RoutedRequest, slot: _Slot, failed: Sequence[_Slot], left: _Left, number: int
    ) -> bool:
        """Returns whether there is another try; while a pool has addresses that were not asked, there is.

        Other pools go first once two of a pool's addresses have failed, or its only one: an engine that has died may
        answer every try with an error until it is replaced.
        """
        if number == self._max_attempts:
            return False
        name, replicas = slot.candidate.pool, slot.pool.replicas
        asked = {each.endpoint.url for each in failed if each.candidate.pool == name}
        if len(asked) >= min(replicas, _ADDRESSES_OF_A_POOL):
            left.put_last(name)
        if not left and replicas > number:
            left.append(slot.candidate)
        return bool(left)

    def has_other(self, request: RoutedRequest) -> bool:
        """Returns whether a request may go to several engines."""
        model, candidates = request.decision.model, request.decision.candidates
        return len(candidates) > 1 or any(self._pools[model, each.pool].replicas > 1 for each in candidates)

    def resumes(self, request: RoutedRequest, candidate: Candidate) -> bool:
        """Returns whether a candidate's engines go on with an answer to a request that broke."""
        return self._outgoing.resumes(request, candidate)

    def prompt_of(self, request: RoutedRequest, candidate: Candidate) -> bytes:
        """Returns the body of a request as far as a candidate's engines make their prompt of it."""
        return self._outgoing.prompt_of(request, candidate)

    @asynccontextmanager
    async def asking(self, request: RoutedRequest, candidate: Candidate) -> AsyncIterator[Ask]:
        """Gives what asks one of a candidate's engines beside the request itself: path and body to the answer's body.

        Raises:
            GatewayError: No engine is free or answers, or it refuses.
        """
        pool = self._pools[request.decision.model, candidate.pool]
        async with pool.reserve(asker=request.asker) as endpoint:

            async def ask(path: str, body: bytes) -> bytes:
                headers = self._outgoing.headers(request, endpoint, next(request.attempt_numbers))
                if self._telemetry.traced:
                    self._inject(headers)
                async with await self._upstream.post(endpoint, path, (body,), headers) as response:
                    answer = await response.body()
                    if response.status != _OK:
                        raise EngineError(f"The engine answered {path} with status {response.status}.")
                    return answer

            yield ask

    def _add_fault(self, request: RoutedRequest, pool: str, kind: str, detail: str) -> None:
        where = request.decision.model, pool
        self._telemetry.log.add_fault(request.attribution.faults, request.request_id, where, kind, detail)

    async def _slot(
        self,
        request: RoutedRequest,
        left: _Left,
        held: Held,
        failed: Sequence[_Slot],
        on_try: OnTry,
    ) -> _Slot:
        """Waits for a slot, and records for how long.

        In `left`, the candidate that is returned counts as tried, and those whose pools refused are dropped.

        Raises:
            GatewayError: No pool has a slot.
        """
        began_s = time.monotonic()
        preferred, model = left[0], request.decision.model
        pool = self._pools[model, preferred.pool]
        on_try(preferred)
        affinity = Affinity(
            partial(session_key, request.features),
            partial(self._prompt_blocks, request, preferred.pool),
            frozenset([slot.endpoint.url for slot in failed]) if failed else NOWHERE,
        )
        pools = [preferred.pool]
        try:
            with self._telemetry.step("slot") as span:
                if left[-1] is not preferred and not pool.ready:  # or there is no other
                    pools = left.pools
                if len(pools) == 1:
                    left.remove(preferred)
                    span.set_attribute("specgate.pool", preferred.pool)
                    hold = pool.reserve(affinity, request.asker)
                    slot = _Slot(preferred, pool, await hold.__aenter__(), hold)
                    held.keep(hold)
                else:
                    asked = [self._pools[model, name] for name in pools]
                    free = await first_free(asked, affinity, request.asker, held.keep)
                    span.set_attribute("specgate.pool", pools[free.number])
                    if pools[free.number] != preferred.pool:
                        span.set_attribute("specgate.reasons", [FREE_SLOT])
                    slot = _Slot(left.of_pool(pools[free.number]), asked[free.number], free.endpoint, free.hold)
                    left.remove(slot.candidate)
                    left.drop({pools[number] for number in free.refused})
        except _RETRIED as error:
            self._telemetry.log.warn(request.request_id, (model, ", ".join(pools)), error.code, error.message)
            raise
        if slot.candidate is not preferred:
            self._telemetry.retried(preferred.pool)
            on_try(slot.candidate)
            request.attribution.add_reason(FREE_SLOT)
        if (waited_s := time.monotonic() - began_s) > _NO_WAIT_S:
            request.attribution.waited_s += waited_s
            self._telemetry.waited(waited_s, model, slot.candidate.pool, PRIORITIES[request.asker.rank])
        return slot

    async def _post(self, request: RoutedRequest, slot: _Slot, held: Held, sent: AnySent) -> Attempt:
        """Sends the request to a replica; the response stays open until `held` is released."""
        number = next(request.attempt_numbers)
        out = self._outgoing.outgoing(request, slot.candidate, sent.last_frames())
        patch, meter = out.patch, out.meter
        body: Sequence[bytes | memoryview] = (request.body,)
        if patch:
            body = await beside(patch.reads and len(request.body) > LONG_BODY_BYTES, patch.parts, request.body)
        headers = self._outgoing.headers(request, slot.endpoint, number)
        span = self._span(request, slot, number, headers, held) if self._telemetry.traced else INVALID_SPAN
        request.charge.settles(slot.hold.turn)
        sent_s = time.monotonic()
        if not request.features.stream:  # its answer begins when it is whole, long after the prompt is computed
            slot.hold.begun()
        try:
            response = await self._upstream.post(slot.endpoint, request.path, body, headers)
        except _RETRIED as error:  # caught before it passes through the span
            meter.lose()
            fail(span, error.code, error.status)
            raise
        held.keep(response)
        slot.hold.begun()
        request.attribution.engine = slot.endpoint.url
        response.on_break = partial(slot.pool.forget, slot.endpoint)
        if response.status == _OK and (refusal := refusal_in(response.first, streamed=response.is_stream)) is not None:
            response.refuse(*refusal)
        meter.answered(response.status)
        if response.status == _OK:
            if response.is_stream and not request.features.stream:
                raise EngineError("The engine answered with a stream, for which nobody has asked.")
            request.attribution.answering = Answering(slot.candidate, meter, sent_s)
        if span.is_recording():
            tell_beginning(span, response, time.monotonic() - sent_s)
            if request.charge.counts:  # or one span of eight would have it
                held.at_end(partial(tell_usage, span, meter))
        several = request.features.n > 1 or is_several(request.parsed.prompt)
        return Attempt(slot.candidate, response, out.ids, out.stages, several)

    def _span(self, request: RoutedRequest, slot: _Slot, number: int, headers: dict[str, str], held: Held) -> Span:
        """Begins the span of an attempt, and adds its context to the headers."""
        kind = self._outgoing.kind(request, slot.candidate)
        about = attempt_attributes(request, slot.candidate, slot.endpoint.url, kind, number)
        span = held.enter_now(self._telemetry.step(attempt_name(request), about, SpanKind.CLIENT))
        self._inject(headers)
        return span

    def _inject(self, headers: dict[str, str]) -> None:
        """Adds the current span's context to the headers for an engine."""
        inject(headers)
        if not self._pass_baggage:  # injected with the trace, but it holds whatever the client put there
            headers.pop("baggage", None)

    def _prompt_blocks(self, request: RoutedRequest, pool: str) -> tuple[int, ...]:
        """Returns the blocks of a request's prompt, as the client wrote it, in the cache of a pool's engines."""
        parsed = request.parsed
        parts = [bytes(parsed.prompt), *(bytes(message.content) for message in parsed.messages or ())]
        return blocks_of(parts, self._outgoing.salt(request, pool))
