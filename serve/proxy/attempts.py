"""From the allowed ways to serve a request to an answer that has begun: one after the other until one does."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from policies import Candidate
from serve.config.gateway import GatewayConfig
from serve.errors import DeadlineError, GatewayError, OverloadedError, PoolUnavailableError
from serve.proxy.exchange import Exchange
from serve.proxy.headers import forwarded_headers
from serve.proxy.upstream import Answer, Upstream
from serve.request.rewrite import OPT_OUT, REPORT, engine_body
from serve.routing.endpoint import SLOT_HEADER, Endpoint
from serve.routing.pool import Route
from serve.routing.session_affinity import session_key
from serve.telemetry.instruments import Telemetry, inject

log = logging.getLogger("ray.serve.specgate.attempts")

_RETRIED = (PoolUnavailableError, OverloadedError, DeadlineError)
_RETRIED_STATUS = frozenset({500, 502, 503, 504})  # 429 is the engine's word on load: passed on with its Retry-After


class Attempts:
    """Sends requests to pools.

    Args:
        config: How often to try, what a refused client is told to wait, which pools are engines of ours.
        routes: The pools by model and pool name.
        upstream: HTTP to the replicas.
        telemetry: Spans and metrics.
    """

    def __init__(
        self,
        config: GatewayConfig,
        routes: Mapping[tuple[str, str], Route],
        upstream: Upstream,
        telemetry: Telemetry,
    ) -> None:
        self._limits, self._routes, self._upstream, self._telemetry = config.limits, routes, upstream, telemetry
        self._ours = {(model, name) for model, _, name, pool in config.each_pool() if pool.kind != "remote"}

    @asynccontextmanager
    async def answer(self, exchange: Exchange, candidates: Sequence[Candidate]) -> AsyncIterator[Answer]:
        """The first answer that begins, read as long as the context lasts; `exchange.candidate` tells whose it is.

        The first candidate is tried twice (another replica may answer), then the others, until the limit of requests
        is sent. A pool without room is passed over and costs none of them.

        Raises:
            GatewayError: Nobody answered.
        """
        assert exchange.decision is not None
        plan, sent = [candidates[0], *candidates], 0
        failure: GatewayError = PoolUnavailableError("No replica answered.", None, None, self._limits.retry_after_s)
        while plan and sent < self._limits.max_attempts:
            candidate = exchange.candidate = plan.pop(0)
            others = [each for each in plan if each.pool != candidate.pool]
            endpoint = None
            async with AsyncExitStack() as held:
                try:
                    slot = self._slot(exchange, candidate, sent, elsewhere=bool(others))
                    with self._telemetry.step("choose_replica", pool=candidate.pool):
                        endpoint = await held.enter_async_context(slot)
                    sent += 1
                    answer = await held.enter_async_context(self._post(exchange, candidate, endpoint))
                except _RETRIED as error:
                    failure = error
                    if endpoint is not None:
                        self._routes[exchange.decision.model, candidate.pool].forget(endpoint)
                    log.warning("request %s: pool %s: %s", exchange.request_id, candidate.pool, error)
                else:
                    if answer.status not in _RETRIED_STATUS or not plan or sent == self._limits.max_attempts:
                        yield answer
                        return
            if endpoint is None:
                plan = others  # it has no more room than it had a moment ago
            self._telemetry.instruments.retries.add(candidate.pool)
        raise failure

    def _slot(
        self, exchange: Exchange, candidate: Candidate, sent: int, *, elsewhere: bool
    ) -> AbstractAsyncContextManager[Endpoint]:
        """A place on a replica of the pool; another one after a request was sent."""
        assert exchange.decision is not None
        assert exchange.features is not None
        session = session_key(exchange.headers, exchange.features, sent)
        return self._routes[exchange.decision.model, candidate.pool].reserve(session, elsewhere)

    @asynccontextmanager
    async def _post(self, exchange: Exchange, candidate: Candidate, endpoint: Endpoint) -> AsyncIterator[Answer]:
        """Send the request to one replica."""
        assert exchange.decision is not None
        assert exchange.asked is not None
        headers = forwarded_headers(exchange.headers, endpoint.key) | {"x-request-id": exchange.request_id}
        if endpoint.slot:
            headers[SLOT_HEADER] = endpoint.slot
        xargs = {
            **(OPT_OUT if candidate.opt_out else {}),
            **(REPORT if exchange.guarded and (exchange.decision.model, candidate.pool) in self._ours else {}),
        }
        body = engine_body(exchange.body, exchange.asked, xargs)
        with self._telemetry.step("upstream", pool=candidate.pool):
            inject(headers)
            async with self._upstream.post(endpoint, exchange.path, body, headers) as answer:
                yield answer
