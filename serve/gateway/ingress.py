"""One gateway replica inside Ray Serve: the composition root, and Ray's hooks."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastapi
from ray.serve.handle import DeploymentHandle
from starlette.routing import Route

from policies import Advisory, Policy
from serve.access.key_ring import KeyRing
from serve.access.live import authenticator
from serve.access.metrics import show_keys
from serve.admin.authorization import Authorized
from serve.admin.routes import DATA_PORT
from serve.config.compiled_policy import compile_for, read_advisories
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.errors import ConfigError, GatewayError
from serve.gateway.advisory_feed import AdvisoryFeed
from serve.gateway.announcer import Announcer
from serve.gateway.cross_site import InferenceCors, with_cors
from serve.gateway.endpoints import GatewayApi, as_operator, error_response
from serve.gateway.hot_routes import hot_routes
from serve.gateway.key_source import live_access
from serve.gateway.metrics import ReplicaMetrics, Vitals
from serve.gateway.pipeline import Gateway
from serve.gateway.pools import PoolKey, build_pools, reported_facts
from serve.gateway.ray_context import application, gateway_replicas, replica_name
from serve.gateway.scale import Scale
from serve.gateway.sight import Reruns, sight
from serve.guard.attempt_result import AttemptResult
from serve.guard.metrics import ResultMetrics
from serve.guard.transcript import Transcripts
from serve.http1.allowance import Allowance
from serve.http1.asgi import AsgiApp
from serve.http1.server import serve_directly
from serve.limits.accounts import Accounts
from serve.limits.actor import connect as connect_ledger
from serve.limits.api import routes as usage_routes
from serve.limits.metrics import show_limits
from serve.load.board import SharedLoad
from serve.load.board import connect as connect_board
from serve.load.live_load import LiveLoad
from serve.load.metrics import show_load
from serve.proxy.upstream import Upstream
from serve.quarantine.actor import connect
from serve.quarantine.api import routes as quarantine_routes
from serve.quarantine.live import LivePolicy, QuarantinedPolicy
from serve.telemetry.instruments import Telemetry
from serve.telemetry.request_log import keep_writing

log = logging.getLogger("ray.serve.specgate.gateway")

_FACTS_PERIOD_S = 30.0
_UPDATABLE = frozenset({"policy", "version", "least_replicas"})
_FACTS_RETRY_S = 1.0  # until every pool has reported once


class GatewayReplica:
    """The HTTP side of one gateway replica; `serve.app` wraps it as the Ray Serve ingress.

    Args:
        config: A `GatewayConfig` as a mapping.
        pools: (model, pool, handle) of every pool that runs in this cluster.
        door: The operator's door; None outside Ray, as in tests.
    """

    def __init__(
        self,
        config: dict[str, Any],
        pools: list[tuple[str, str, DeploymentHandle]],
        door: DeploymentHandle | None = None,
    ) -> None:
        self._door = door
        self._reruns = Reruns()
        self._config = GatewayConfig.parse(config)
        self._scale = Scale(self._config)
        self._policy_config = self._config.policy
        self._advisories = read_advisories(self._policy_config)
        self._facts: dict[PoolKey, dict[str, Any]] = {}
        handles = {(model, pool): handle for model, pool, handle in pools}
        gateways = gateway_replicas()
        self._pools = build_pools(self._config, handles, gateways)
        self._telemetry = Telemetry(config=self._config.telemetry)
        self._upstream = Upstream(self._config.limits)
        policy = self._compile()
        self._quarantine = _quarantine(self._config, policy) if self._config.quarantine.enabled else None
        live = self._quarantine or LivePolicy(policy)
        self._tell = ResultMetrics(self._telemetry.metrics, self._quarantine.cells if self._quarantine else list)
        self._load = LiveLoad(self._config, policy, gateways) if self._config.policy.load != "off" else None
        if self._load is not None:
            show_load(self._telemetry.metrics, self._load)
        rates = self._config.rate_limits
        counted = self._config.counts_usage
        ledger = connect_ledger(application(), self._config.access.state_dir, rates.store) if counted else None
        names = dict(self._config.each_name())
        self._accounts = Accounts(rates, ledger, gateways, names=names) if ledger is not None else None
        if self._accounts is not None:
            show_limits(self._telemetry.metrics, self._accounts)
        self._access = live_access(self._config.access, door)
        show_keys(self._telemetry.metrics, self._access.ring if self._access is not None else KeyRing())
        self._authenticate = authenticator(self._access)
        self._transcripts = Transcripts() if self._config.admin.rerun_content else None
        self._gateway = Gateway(
            self._config, live, self._pools, self._upstream, self._telemetry, self._judged, self._load,
            self._authenticate, self._accounts, self._transcripts,
        )  # fmt: skip
        self._api = GatewayApi(
            self._config, self._scale, self._gateway, self._pools, self._facts, self._telemetry.metrics
        )
        limits = self._config.limits
        self._allowance = Allowance(limits.max_connections, limits.max_buffered_bytes, limits.retry_after_s)
        age = self._quarantine.detector_age_s if self._quarantine is not None else None
        vitals = Vitals(self._allowance, lambda: self._api.refused_update, age)
        self._metrics = ReplicaMetrics(self._telemetry.metrics, self._scale, self._pools, vitals)

    @property
    def hot(self) -> dict[str, AsgiApp]:
        """The paths whose requests bypass the web framework."""
        origins = self._config.http.cors_origins
        return {path: with_cors(app, origins) for path, app in self._inference().items()}

    def _inference(self) -> dict[str, AsgiApp]:
        return hot_routes(self._gateway, self._api.max_model_len)

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        """Ray Serve's hook, called before it starts this replica's listener."""
        serve_directly(self.hot, self._allowance)
        return self.app()

    def app(self) -> fastapi.FastAPI:
        """Returns an app with all routes."""
        app = fastapi.FastAPI(
            title="specgate", lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        inference = self._inference()
        for path, hot_app in inference.items():  # for a listener that is not ours
            app.router.routes.append(Route(path, hot_app, methods=["POST"]))
        app.include_router(self._api.routes())
        app.add_middleware(Authorized, rules=DATA_PORT, authenticate=self._authenticate)
        if origins := self._config.http.cors_origins:
            app.add_middleware(InferenceCors, origins=origins, paths=inference)
        app.add_exception_handler(GatewayError, error_response)
        return app

    def operators_app(self) -> fastapi.FastAPI:
        """Returns an app with the routes for the operator's door, which has asked who may use them."""
        trusted = [fastapi.Depends(as_operator)]
        app = fastapi.FastAPI(title="specgate", dependencies=trusted, docs_url=None, redoc_url=None, openapi_url=None)
        app.include_router(self._api.operator_routes())
        app.add_api_route("/admin/v1/sight", self._sight, methods=["GET"])
        app.add_api_route("/admin/v1/rerun", self._rerun, methods=["GET"])
        if self._quarantine is not None:
            app.include_router(quarantine_routes(self._quarantine))
        if self._accounts is not None:
            app.include_router(usage_routes(self._accounts))
        app.add_exception_handler(GatewayError, error_response)
        return app

    async def _sight(self) -> dict[str, Any]:
        policy = {"digest": self._gateway.policy.digest, "refused_update": self._api.refused_update}
        standings = self._accounts.standings() if self._accounts is not None else ()
        return sight(
            self._config, self._scale, self._pools, policy, self._quarantine, self._reruns, standings,
            self._telemetry.metrics,
        )  # fmt: skip

    async def _rerun(self, request_id: str) -> dict[str, Any]:
        """Returns what engines sent for a request that was rerun, if this replica keeps such texts and has this one."""
        return {"data": self._transcripts.get(request_id) if self._transcripts is not None else None}

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray Serve's hook: adopts another policy, and what pools should have, without dropping a request.

        A bad policy is refused and the old one stays: an operator's typing error must not take the gateway down.
        """
        try:
            if unknown := set(user_config) - _UPDATABLE:
                known = ", ".join(sorted(_UPDATABLE))
                raise ConfigError(f"user_config: unknown keys {sorted(unknown)}; known keys: {known}")
            self._scale.adopt(user_config.get("least_replicas", {}))
            update = user_config.get("policy")
            policy_config = self._config.policy if update is None else PolicyConfig.model_validate(update)
            changed = policy_config is not self._policy_config or "version" in user_config
            if changed or self._api.refused_update is not None:
                self._adopt(policy_config, read_advisories(policy_config, strict=True))
        except (ConfigError, ValueError) as error:
            self._refuse(error)

    async def _reread_advisories(self) -> None:
        """Adopts what the folder of advisories holds now; if one can't be read, all the old ones stay in force."""
        policy_config = self._policy_config
        try:
            advisories = await asyncio.to_thread(read_advisories, policy_config, strict=True)
            if policy_config is self._policy_config:  # no other policy came in the meantime
                self._adopt(policy_config, advisories)
        except ConfigError as error:
            self._refuse(error)

    def _adopt(self, policy_config: PolicyConfig, advisories: tuple[Advisory, ...]) -> None:
        policy = self._compile_with(policy_config, advisories)
        self._set_load(policy_config)
        self._policy_config = policy_config
        self._advisories = advisories
        self._api.refused_update = None
        self._gateway.adopt(policy)
        log.info("adopted policy %s", policy.digest)

    def _refuse(self, error: Exception) -> None:
        self._api.refused_update = str(error)
        log.error("refused the new policy, kept the old one: %s", error)

    def _advisory_folder(self) -> Path | None:
        return Path(self._policy_config.advisories) if self._policy_config.advisories else None

    def _set_load(self, policy_config: PolicyConfig) -> None:
        if self._load is not None:
            self._load.routes = policy_config.load == "route"
        elif policy_config.load != "off":
            raise ConfigError("policy.load can be switched on only at the start; `observe` changes no decision")

    @asynccontextmanager
    async def _lifespan(self, _: fastapi.FastAPI) -> AsyncIterator[None]:
        gc.collect()
        gc.freeze()  # imports stay for ever; collecting them again and again took a tenth of a busy replica's time
        feed = AdvisoryFeed(self._advisory_folder, self._reread_advisories)
        always = (self._watch_facts(), feed.run(), self._metrics.watch_loop(), keep_writing())
        tasks = [asyncio.create_task(each) for each in always]
        if self._quarantine is not None:
            tasks.append(asyncio.create_task(self._quarantine.run()))
        reporting = None if self._accounts is None else asyncio.create_task(self._accounts.run())
        if reporting is not None:
            tasks.append(reporting)
        # Without tenants and reserved slots there is nothing to share fairly.
        if self._load is not None or self._access is not None or self._config.limits.reserved_slots:
            tasks.append(asyncio.create_task(SharedLoad(self._load, self._pools, connect_board(application())).run()))
        if self._access is not None:
            tasks.append(asyncio.create_task(self._access.run()))
        if self._door is not None:
            tasks.append(asyncio.create_task(Announcer(self._door, replica_name(), self.operators_app()).run()))
        for task in tasks:
            task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if self._accounts is not None and reporting is not None:
                await asyncio.wait([reporting])  # it may be in the midst of a report
                await self._accounts.end()
            if self._access is not None:
                self._access.close()
            await asyncio.to_thread(self._telemetry.shutdown)  # with a collector that is gone, seconds
            await asyncio.gather(*(pool.close() for pool in self._pools.values()))
            await self._upstream.close()

    def _judged(self, result: AttemptResult) -> None:
        self._tell(result)
        self._reruns(result)
        if self._quarantine is not None:
            self._quarantine(result)

    def _compile(self) -> Policy:
        return self._compile_with(self._policy_config, self._advisories)

    def _compile_with(self, policy: PolicyConfig, advisories: tuple[Advisory, ...]) -> Policy:
        return compile_for(self._config.model_copy(update={"policy": policy}), self._facts, advisories)

    async def _watch_facts(self) -> None:
        """Keeps the policy true to the engines, whose versions and settings can change with every restart."""
        while True:
            reports = await asyncio.gather(*map(reported_facts, self._pools.values()))
            facts = {key: report for key, report in zip(self._pools, reports, strict=True) if report is not None}
            if any(self._facts.get(key) != report for key, report in facts.items()):
                self._facts |= facts
                self._gateway.adopt(self._compile())
            await asyncio.sleep(_FACTS_PERIOD_S if len(facts) == len(self._pools) else _FACTS_RETRY_S)


def _quarantine(config: GatewayConfig, policy: Policy) -> QuarantinedPolicy:
    guards = {name: model.guard for name, model in config.models.items()}
    return QuarantinedPolicy(config.quarantine, guards, policy, connect(application(), config.quarantine.state_dir))


def _log_failure(task: asyncio.Task[None]) -> None:
    """Logs the end of a task that should run for ever."""
    if not task.cancelled() and (error := task.exception()):
        log.error("a background task of this replica has ended", exc_info=error)
