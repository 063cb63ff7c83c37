"""From the allowed ways to serve a request to an answer that has begun: one after the other until one does."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from policies import Candidate
from serve.affinity import session_key
from serve.body import OPT_OUT, REPORT, engine_body
from serve.config import GatewayConfig
from serve.errors import DeadlineError, GatewayError, OverloadedError, PoolUnavailableError
from serve.exchange import Exchange
from serve.protocol import forwarded_headers
from serve.router import Route
from serve.telemetry import Telemetry, inject
from serve.upstream import Answer, Upstream

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

        The first candidate is tried twice (another replica may answer), then the others, within the limit.

        Raises:
            GatewayError: Nobody answered.
        """
        plan = [candidates[0], *candidates][: self._limits.max_attempts]
        full: set[str] = set()
        failure: GatewayError = PoolUnavailableError("No replica answered.", None, None, self._limits.retry_after_s)
        for place, candidate in enumerate(plan):
            if candidate.pool in full:
                continue  # its queue is as full as it was a moment ago
            exchange.candidate = candidate
            async with AsyncExitStack() as held:
                try:
                    answer = await held.enter_async_context(self._attempt(exchange, candidate, place))
                except _RETRIED as error:
                    failure = error
                    if isinstance(error, OverloadedError):
                        full.add(candidate.pool)
                    log.warning("request %s: pool %s: %s", exchange.request_id, candidate.pool, error)
                else:
                    if answer.status not in _RETRIED_STATUS or place == len(plan) - 1:
                        yield answer
                        return
            self._telemetry.instruments.retries.add(1, {"pool": candidate.pool})
        raise failure

    @asynccontextmanager
    async def _attempt(self, exchange: Exchange, candidate: Candidate, place: int) -> AsyncIterator[Answer]:
        """Send the request to one replica."""
        assert exchange.decision is not None
        assert exchange.features is not None
        key = (exchange.decision.model, candidate.pool)
        route = self._routes[key]
        async with AsyncExitStack() as held:
            with self._telemetry.step("choose_replica", pool=candidate.pool):
                session = session_key(exchange.headers, exchange.features, place)
                endpoint = await held.enter_async_context(route.reserve(session))
            headers = forwarded_headers(exchange.headers, endpoint.key) | {"x-request-id": exchange.request_id}
            xargs = {
                **(OPT_OUT if candidate.opt_out else {}),
                **(REPORT if exchange.guarded and key in self._ours else {}),
            }
            body = engine_body(exchange.body, own_fields=exchange.features.own_fields, xargs=xargs)
            with self._telemetry.step("upstream", pool=candidate.pool):
                inject(headers)
                yield await held.enter_async_context(self._upstream.post(endpoint, exchange.path, body, headers))
