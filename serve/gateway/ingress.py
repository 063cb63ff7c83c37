"""One gateway replica inside Ray Serve: its HTTP routes, its view of the pools, its policy."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastapi
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from ray import serve as ray_serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.routing import Route as HttpRoute

from policies import Policy
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.errors import ConfigError, GatewayError, ModelNotFoundError
from serve.gateway.pipeline import Gateway
from serve.gateway.pools import routes_of
from serve.guard.attempt_result import AttemptResult
from serve.guard.metrics import ResultTelemetry
from serve.http1.asgi import AsgiApp, read_body
from serve.http1.server import answer_first
from serve.live_policy import LivePolicy, compile_for
from serve.proxy.headers import request_headers
from serve.proxy.upstream import Upstream
from serve.quarantine.actor import connect
from serve.quarantine.api import routes as quarantine_routes
from serve.quarantine.live import QuarantineView
from serve.routing.pool import Route
from serve.telemetry.instruments import Telemetry

log = logging.getLogger("ray.serve.specgate.ingress")


_READY_TIMEOUT_S = 5.0


_FACTS_PERIOD_S = 30.0


class GatewayReplica:
    """The HTTP side of one gateway replica; `serve.app` wraps it as the Ray Serve ingress.

    Args:
        config: A `GatewayConfig` as a mapping.
        pools: (model, pool, handle) of every pool that runs in this cluster.
    """

    def __init__(self, config: dict[str, Any], pools: list[tuple[str, str, DeploymentHandle]]) -> None:
        self._config = GatewayConfig.parse(config)
        self._policy_config = self._config.policy
        self._policy_error: str | None = None
        self._learned: dict[tuple[str, str], dict[str, Any]] = {}
        self._routes = routes_of(self._config, {(model, pool): handle for model, pool, handle in pools})
        self._telemetry = Telemetry()
        self._upstream = Upstream(self._config.limits)
        policy = self._compile()
        self._quarantine = _quarantine(self._config, policy) if self._config.quarantine.enabled else None
        live = self._quarantine or LivePolicy(policy)
        self._tell = ResultTelemetry(self._telemetry.meter, self._quarantine.cells if self._quarantine else list)
        self._gateway = Gateway(self._config, live, self._routes, self._upstream, self._telemetry, self._judged)

    @property
    def hot(self) -> dict[str, AsgiApp]:
        """The routes whose requests should take no detour."""
        return {"/v1/chat/completions": self._gateway, "/v1/completions": self._gateway}

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        """Ray Serve's hook; it starts this replica's listener later."""
        answer_first(self.hot)
        return self.app()

    def app(self) -> fastapi.FastAPI:
        """All routes."""
        app = fastapi.FastAPI(
            title="specgate", lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        for path, answer in self.hot.items():  # for a listener that is not ours
            app.router.routes.append(HttpRoute(path, answer, methods=["POST"]))
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{model:path}", self.model, methods=["GET"])
        app.add_api_route("/v1/policy", self.policy, methods=["GET"])
        app.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_api_route("/ready", self.ready, methods=["GET"])
        app.add_api_route("/metrics", self.metrics, methods=["GET"])
        if self._quarantine is not None:
            app.include_router(quarantine_routes(self._quarantine))
        app.add_exception_handler(GatewayError, _error_response)
        app.add_exception_handler(404, _not_found)
        app.add_exception_handler(405, _not_found)
        return app

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray Serve's hook: adopt another policy without dropping a request.

        A bad policy is refused and the old one stays: an operator's typing error must not take the gateway down.
        """
        try:
            unknown = set(user_config) - {"policy", "version"}
            if unknown:
                raise ConfigError(f"user_config: unknown keys {sorted(unknown)}; known: policy, version")
            wanted = user_config.get("policy")
            config = self._config.model_copy(
                update={"policy": self._config.policy if wanted is None else PolicyConfig.model_validate(wanted)}
            )
            policy = compile_for(config, self._learned, strict=True)
        except (ConfigError, ValueError) as error:
            self._policy_error = str(error)
            log.error("the new policy is refused, the old one stays: %s", error)
            return
        self._policy_config, self._policy_error = config.policy, None
        self._gateway.adopt(policy)
        log.info("policy %s adopted", policy.digest)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [_model_object(name) for name in self._config.models]}

    async def model(self, model: str) -> dict[str, Any]:
        name = self._config.resolve(model)
        if name is None:
            raise ModelNotFoundError.unknown(model, self._config.models)
        return _model_object(name)

    async def policy(self) -> dict[str, Any]:
        """The active policy: its digest, what each pool may do, and why a newer one was refused."""
        return {**self._gateway.policy.to_dict(), "refused_update": self._policy_error}

    async def explain(self, request: fastapi.Request) -> JSONResponse:
        """The decision for the body of a normal request, by the live code, without an engine."""
        headers = request_headers(request.headers.raw)
        body = await read_body(request.receive, headers, self._config.limits.max_body_bytes)
        explanation, evidence = self._gateway.explain(body, headers)
        return JSONResponse(explanation, headers={"x-specgate-evidence": f"evidence={evidence}"})

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def ready(self) -> JSONResponse:
        """200 when every pool has a replica that answers."""
        states = dict(zip(self._routes, await asyncio.gather(*map(_is_up, self._routes.values())), strict=True))
        pools = {f"{model}/{pool}": "up" if up else "starting or down" for (model, pool), up in states.items()}
        return JSONResponse({"ready": all(states.values()), "pools": pools}, 200 if all(states.values()) else 503)

    async def metrics(self) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def _lifespan(self, _: fastapi.FastAPI) -> AsyncIterator[None]:
        gc.collect()
        gc.freeze()  # what was imported stays; looking at it again and again took a tenth of a busy replica's time
        watching = [asyncio.create_task(self._watch_facts())]
        if self._quarantine is not None:
            watching.append(asyncio.create_task(self._quarantine.run()))
        for task in watching:
            task.add_done_callback(_tell_failure)
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            self._telemetry.shutdown()
            await asyncio.gather(*(route.close() for route in self._routes.values()))
            await self._upstream.close()

    def _judged(self, result: AttemptResult) -> None:
        self._tell(result)
        if self._quarantine is not None:
            self._quarantine(result)

    def _compile(self) -> Policy:
        return compile_for(self._config.model_copy(update={"policy": self._policy_config}), self._learned)

    async def _watch_facts(self) -> None:
        """Keep the policy true to what the engines became: versions and settings can change with every restart."""
        while True:
            learned = await asyncio.gather(*(_facts_or_none(route) for route in self._routes.values()))
            known = {key: facts for key, facts in zip(self._routes, learned, strict=True) if facts is not None}
            if any(self._learned.get(key) != facts for key, facts in known.items()):
                self._learned |= known
                self._gateway.adopt(self._compile())
            await asyncio.sleep(_FACTS_PERIOD_S if len(known) == len(self._routes) else 1.0)


def _quarantine(config: GatewayConfig, policy: Policy) -> QuarantineView:
    try:
        application = ray_serve.get_replica_context().app_name
    except RayServeException:
        application = None  # outside Ray, as in tests: this replica is the only one
    guards = {name: model.guard for name, model in config.models.items()}
    return QuarantineView(config.quarantine, guards, policy, connect(application, config.quarantine.state_dir))


def _tell_failure(task: asyncio.Task[None]) -> None:
    """A task that runs for ever must not end unheard."""
    if not task.cancelled() and (error := task.exception()):
        log.error("a background task of this replica has ended", exc_info=error)


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "specgate"}


async def _facts_or_none(route: Route) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            return dict(await route.facts())
    except (GatewayError, TimeoutError):
        return None


async def _is_up(route: Route) -> bool:
    return await _facts_or_none(route) is not None


async def _error_response(_: fastapi.Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GatewayError)
    return JSONResponse(error.to_body(), error.status)


async def _not_found(request: fastapi.Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here."
    return JSONResponse(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}}, status
    )
