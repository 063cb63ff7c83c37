"""One gateway replica inside Ray Serve: the composition root, and Ray's hooks."""

import asyncio
import ctypes
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fastapi
from starlette.routing import Route

from policies.freshness import age_days
from serve import VERSION
from serve.admin.authorization import DATA_PORT, Authorized
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.grammar import grammar_findings
from serve.errors import GatewayError
from serve.gateway.cors import InferenceCors, with_cors
from serve.gateway.endpoints import GatewayApi, as_operator, error_response
from serve.gateway.engine_watch import EngineWatch
from serve.gateway.gauges import ReplicaMetrics
from serve.gateway.parts import (
    Part,
    access_of,
    announcements,
    echo_of,
    limits_of,
    load_of,
    quarantine_of,
    running,
    shadows_of,
    shared_load,
    transcripts_of,
)
from serve.gateway.pipeline import Gateway, hot_routes
from serve.gateway.policy_updates import PolicyUpdates, read_sources
from serve.gateway.pools import Scale, build_pools
from serve.gateway.snapshot import Reruns, snapshot
from serve.guard.attempt_result import AttemptResult, ResultMetrics
from serve.http1.allowance import Allowance, connections_within_files
from serve.http1.asgi import AsgiApp
from serve.http1.server import serve_directly
from serve.proxy.upstream import Upstream
from serve.shared.link import gateway_replicas, link_to_admin_api
from serve.telemetry.instruments import Telemetry
from serve.telemetry.request_log import keep_writing

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from serve.shared.link import LocalLink

log = logging.getLogger("ray.serve.specgate.gateway")
# Each looks through all that open streams hold, 60 ms for 250 of them, and finds next to nothing: Python's is 10.
_FULL_COLLECTIONS = 1000
# Parameters of glibc's `mallopt`, and how much of what was freed each of its arenas keeps.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 8 * 1024 * 1024


class GatewayReplica:
    """The HTTP side of one gateway replica; `serve.app` wraps it as the Ray Serve ingress. It is given a
    `GatewayConfig` as a mapping, (model, pool, handle) of every pool that runs in this cluster, and the admin API, in
    Ray or in this process; None if there is none, as in tests.
    """

    def __init__(
        self,
        config: dict[str, Any],
        pools: "list[tuple[str, str, DeploymentHandle]]",
        admin_api: "DeploymentHandle | LocalLink | None" = None,
    ) -> None:
        self._config = settings = GatewayConfig.parse(config)
        log.info("specgate %s", VERSION)
        for model, message in grammar_findings(settings.models):
            log.warning("%s: %s", model, message)
        handles = {(model, pool): handle for model, pool, handle in pools}
        gateways, admin = gateway_replicas(), link_to_admin_api(admin_api)
        limits = settings.limits
        self._scale = Scale(settings)
        self.pools = build_pools(settings, handles, gateways)
        self.telemetry = Telemetry(config=settings.telemetry)
        connections = connections_within_files(limits.max_connections)
        self.allowance = Allowance(connections, limits.max_buffered_bytes, limits.retry_after_s)
        metrics, upstream = self.telemetry.metrics, Upstream(limits)

        sources = read_sources(settings.policy)
        policy = compile_for(settings, {}, sources.advisories, sources.qualified)
        self._quarantine = quarantine_of(settings, policy, metrics)
        self.load = load_of(settings, policy, gateways, metrics)
        self.accounts, limiting = limits_of(settings, gateways, metrics)
        self.access, keys = access_of(settings, admin, metrics)
        self._transcripts = transcripts_of(settings)
        self._reruns = Reruns()
        self._shadows, shadowing = shadows_of(settings, self.pools, upstream, self.telemetry)
        self._count_result = ResultMetrics(metrics, self._quarantine.cells)
        self._gateway = Gateway(
            settings, self._quarantine.live, self.pools, upstream, self.telemetry, self._judged, self.load,
            self.access.authenticate, self.accounts, self._transcripts, self._shadows,
        )  # fmt: skip
        self.updates = PolicyUpdates(
            settings, sources, self._scale, self.pools, self._gateway.adopt, self.load.switch, self._shadows
        )
        self._api = GatewayApi(settings, self._scale, self._gateway, self.pools, self.updates, metrics)
        self._failures = Counter[str]()
        replica_metrics = ReplicaMetrics(
            metrics, self._scale, self.pools, self.allowance, lambda: self.updates.refused, self._advisories_age_days,
            self._failures,
        )  # fmt: skip
        self._parts = [  # closed in the other direction: what is reported last may still need what stands before it
            Part(close=upstream.close),
            Part(close=self._close_pools),
            Part("request log", run=keep_writing, close=self._close_telemetry),
            Part("event loop lag", run=replica_metrics.run),
            Part("policy", run=self.updates.run, routes=self._api.operator_routes()),
            Part("engine watch", run=EngineWatch(settings, self.pools, self.updates.learn, metrics).run),
            self._quarantine.part,
            shared_load(settings, self.load, self.pools),
            keys,
            limiting,
            shadowing,
            echo_of(settings, self._quarantine.live, self.pools, upstream, self.telemetry, gateways),
            Part(routes=self._insight()),
            announcements(admin, self.operators_app),
        ]
        self._failures.update({part.name: 0 for part in self._parts if part.name})

    def _advisories_age_days(self) -> int | None:
        return age_days(self._gateway.policy.advisories, datetime.now(UTC).date())

    @property
    def hot(self) -> dict[str, AsgiApp]:
        """The paths whose requests bypass the web framework."""
        origins = self._config.http.cors_origins
        return {path: with_cors(app, origins) for path, app in self._inference().items()}

    def _inference(self) -> dict[str, AsgiApp]:
        return hot_routes(self._gateway, self._api.max_model_len)

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        """Ray Serve's hook, called before it starts this replica's listener."""
        serve_directly(self.hot, self.allowance)
        return self.app()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray Serve's hook: adopts another policy, and what pools should have, without dropping a request."""
        self.updates.reconfigure(user_config)

    def app(self) -> fastapi.FastAPI:
        """Returns an app with all routes."""
        app = fastapi.FastAPI(
            title="specgate", lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        inference = self._inference()
        for path, hot_app in inference.items():  # for a listener that is not ours
            app.router.routes.append(Route(path, hot_app, methods=["POST"]))
        app.include_router(self._api.routes())
        app.add_middleware(Authorized, rules=DATA_PORT, authenticate=self.access.authenticate)
        if origins := self._config.http.cors_origins:
            app.add_middleware(InferenceCors, origins=origins, paths=inference)
        app.add_exception_handler(GatewayError, error_response)
        return app

    def operators_app(self) -> fastapi.FastAPI:
        """Returns an app with the routes for the admin API, which has asked who may use them."""
        trusted = [fastapi.Depends(as_operator)]
        app = fastapi.FastAPI(title="specgate", dependencies=trusted, docs_url=None, redoc_url=None, openapi_url=None)
        for part in self._parts:
            app.include_router(part.routes)
        app.add_exception_handler(GatewayError, error_response)
        return app

    def _insight(self) -> fastapi.APIRouter:
        """Returns the routes for the dashboard alone."""
        router = fastapi.APIRouter()

        @router.get("/admin/v1/snapshot")
        async def show() -> dict[str, Any]:
            policy = {"digest": self._gateway.policy.digest, "refused_update": self.updates.refused}
            return snapshot(
                self._config, self._scale, self.pools, policy, self._quarantine, self._reruns,
                self._gateway.journal, self._gateway.policy.facts, self.accounts.standings(), self.telemetry.metrics,
                self._shadows.view(), self.load.view(),
            )  # fmt: skip

        @router.get("/admin/v1/rerun")
        async def rerun(request_id: str) -> dict[str, Any]:
            """Returns what engines sent for a request that was rerun, if this replica keeps it."""
            return {"data": self._transcripts.get(request_id)}

        @router.get("/admin/v1/request")
        async def request(request_id: str) -> dict[str, Any]:
            """Returns what became of a request, if this replica remembers it."""
            found = self._gateway.journal.find(request_id)
            return {"data": None if found is None else found.to_dict()}

        return router

    @asynccontextmanager
    async def _lifespan(self, _: fastapi.FastAPI) -> AsyncIterator[None]:
        settle_memory()
        async with running(self._parts, self._failed):
            yield

    def _failed(self, part: str) -> None:
        self._failures[part] += 1

    def _judged(self, result: AttemptResult) -> None:
        self._count_result(result)
        self._reruns(result)
        self._shadows(result)
        self._quarantine.sink(result)

    async def _close_pools(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))

    async def _close_telemetry(self) -> None:
        await asyncio.to_thread(self.telemetry.shutdown)  # with a collector that is gone, seconds


def settle_memory() -> None:
    """Keeps the garbage collector from what stays, and freed memory in the process, for the rest of its time."""
    with suppress(AttributeError, OSError):  # another C library has no such thing
        libc = ctypes.CDLL(None)
        # Given back after each long body and fetched again page by page, memory took a third of such a request's time.
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    gc.collect()
    gc.freeze()  # imports stay for ever; collecting them again and again took a tenth of a busy replica's time
    gc.set_threshold(700, 10, _FULL_COLLECTIONS)
