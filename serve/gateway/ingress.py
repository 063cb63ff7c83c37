"""One gateway replica inside Ray Serve: the composition root, and Ray's hooks."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastapi
from ray import serve as ray_serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.routing import Route

from policies import Advisory, Policy
from serve.access.key_ring import KeyRing
from serve.access.key_store import KeyStore
from serve.access.live import KeySource, LiveAccess, LocalKeySource, authenticator
from serve.access.metrics import KeyMetrics
from serve.admin.authorization import Authorized
from serve.admin.routes import DATA_PORT
from serve.config.access import AccessConfig
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.errors import ConfigError, GatewayError
from serve.gateway.advisory_feed import AdvisoryFeed
from serve.gateway.announcer import Announcer
from serve.gateway.cross_site import InferenceCors, with_cors
from serve.gateway.endpoints import GatewayApi, as_operator, error_response
from serve.gateway.hot_routes import hot_routes
from serve.gateway.key_source import DoorKeySource
from serve.gateway.metrics import ReplicaMetrics, Vitals
from serve.gateway.pipeline import Gateway
from serve.gateway.pools import PoolKey, build_pools, reported_facts
from serve.gateway.sight import Reruns, sight
from serve.guard.attempt_result import AttemptResult
from serve.guard.metrics import ResultTelemetry
from serve.http1.asgi import AsgiApp
from serve.http1.cycle import Allowance
from serve.http1.server import serve_directly
from serve.limits.accounts import Accounts
from serve.limits.actor import connect as connect_ledger
from serve.limits.api import routes as usage_routes
from serve.limits.metrics import LimitMetrics
from serve.live_policy import LivePolicy, compile_for, read_advisories
from serve.load.board import SharedLoad
from serve.load.live_load import LiveLoad
from serve.load.metrics import LoadMetrics
from serve.proxy.upstream import Upstream
from serve.quarantine.actor import connect
from serve.quarantine.api import routes as quarantine_routes
from serve.quarantine.live import QuarantinedPolicy
from serve.telemetry.instruments import Telemetry

log = logging.getLogger("ray.serve.specgate.gateway")

_FACTS_PERIOD_S = 30.0
_LOAD_PERIOD_S = 1.0
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
        self._policy_config = self._config.policy
        self._advisories = read_advisories(self._policy_config)
        self._facts: dict[PoolKey, dict[str, Any]] = {}
        handles = {(model, pool): handle for model, pool, handle in pools}
        gateways = _gateway_replicas()
        self._pools = build_pools(self._config, handles, gateways)
        self._telemetry = Telemetry()
        self._upstream = Upstream(self._config.limits)
        policy = self._compile()
        self._quarantine = _quarantine(self._config, policy) if self._config.quarantine.enabled else None
        live = self._quarantine or LivePolicy(policy)
        self._tell = ResultTelemetry(self._telemetry.meter, self._quarantine.cells if self._quarantine else list)
        self._load = LiveLoad(self._config, policy, gateways) if self._config.policy.load != "off" else None
        if self._load is not None:
            LoadMetrics(self._telemetry.meter, self._load)
        ledger = connect_ledger(_application(), self._config.access.state_dir) if self._config.counts_usage else None
        self._accounts = Accounts(self._config.rate_limits, ledger, gateways) if ledger is not None else None
        if self._accounts is not None:
            LimitMetrics(self._telemetry.meter, self._accounts)
        self._access = _access(self._config.access, door)
        KeyMetrics(self._telemetry.meter, self._access.ring if self._access is not None else KeyRing())
        self._authenticate = authenticator(self._access)
        self._gateway = Gateway(
            self._config, live, self._pools, self._upstream, self._telemetry, self._judged, self._load,
            self._authenticate, self._accounts,
        )  # fmt: skip
        self._api = GatewayApi(self._config, self._gateway, self._pools, self._facts)
        limits = self._config.limits
        self._allowance = Allowance(limits.max_connections, limits.max_buffered_bytes, limits.retry_after_s)
        age = self._quarantine.detector_age_s if self._quarantine is not None else None
        vitals = Vitals(self._allowance, lambda: self._api.refused_update, age)
        self._metrics = ReplicaMetrics(self._telemetry.meter, self._config, self._pools, vitals)

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
        if self._quarantine is not None:
            app.include_router(quarantine_routes(self._quarantine))
        if self._accounts is not None:
            app.include_router(usage_routes(self._accounts))
        app.add_exception_handler(GatewayError, error_response)
        return app

    async def _sight(self) -> dict[str, Any]:
        cells = self._quarantine.cells() if self._quarantine is not None else []
        policy = {"digest": self._gateway.policy.digest, "refused_update": self._api.refused_update}
        return sight(self._config, self._pools, policy, cells, self._reruns)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray Serve's hook: adopts another policy without dropping a request.

        A bad policy is refused and the old one stays: an operator's typing error must not take the gateway down.
        """
        try:
            unknown = set(user_config) - {"policy", "version"}
            if unknown:
                raise ConfigError(f"user_config: unknown keys {sorted(unknown)}; known keys: policy, version")
            update = user_config.get("policy")
            policy_config = self._config.policy if update is None else PolicyConfig.model_validate(update)
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
        tasks = [asyncio.create_task(each) for each in (self._watch_facts(), feed.run(), self._metrics.watch_loop())]
        if self._quarantine is not None:
            tasks.append(asyncio.create_task(self._quarantine.run()))
        if self._accounts is not None:
            tasks.append(asyncio.create_task(self._accounts.run()))
        if self._load is not None:
            tasks.append(asyncio.create_task(self._watch_load(self._load)))
        if self._access is not None:
            tasks.append(asyncio.create_task(self._access.run()))
        if self._door is not None:
            tasks.append(asyncio.create_task(Announcer(self._door, _replica_name(), self.operators_app()).run()))
        for task in tasks:
            task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            self._telemetry.shutdown()
            await asyncio.gather(*(pool.close() for pool in self._pools.values()))
            await self._upstream.close()

    async def _watch_load(self, load: LiveLoad) -> None:
        """Keeps the load true to the cluster, to the other gateway replicas, and to what was learned."""
        shared = SharedLoad(load, _application())
        while True:
            for key, pool in self._pools.items():
                load.set_engines(key, pool.replicas)
            await shared.sync()
            load.check()
            await asyncio.sleep(_LOAD_PERIOD_S)

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
    return QuarantinedPolicy(config.quarantine, guards, policy, connect(_application(), config.quarantine.state_dir))


def _application() -> str | None:
    """Returns the name of the Serve application; None outside Ray, as in tests: this replica is the only one."""
    try:
        return str(ray_serve.get_replica_context().app_name)
    except RayServeException:
        return None


def _access(config: AccessConfig, door: DeploymentHandle | None) -> LiveAccess | None:
    if config.mode == "off":
        return None
    source: KeySource | None = None
    if config.state_dir is not None:  # on the head node, where the door is; outside Ray, as in tests, here
        source = DoorKeySource(door) if door is not None else LocalKeySource(KeyStore(Path(config.state_dir)))
    return LiveAccess(config, source)


def _gateway_replicas() -> int:
    """Returns how many gateway replicas there were when this one started."""
    try:
        return max(1, int(ray_serve.get_replica_context().world_size))
    except RayServeException:
        return 1  # outside Ray, as in tests


def _replica_name() -> str:
    return str(ray_serve.get_replica_context().replica_id.unique_id)


def _log_failure(task: asyncio.Task[None]) -> None:
    """Logs the end of a task that should run for ever."""
    if not task.cancelled() and (error := task.exception()):
        log.error("a background task of this replica has ended", exc_info=error)
