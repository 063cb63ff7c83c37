"""The Ray Serve application: one ingress deployment, and one deployment for each pool that runs in this cluster."""

# No `from __future__ import annotations` here: Ray reads the annotation of `build` with `inspect`, and as a string it
# is no class, so a misspelt key in the Serve config would pass unvalidated.

import asyncio
import logging
import os
import re
from typing import Any

import fastapi
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle

from policies import Policy
from serve.config import GatewayConfig, PolicyConfig, PoolConfig
from serve.engine.replica import VllmReplica, environment
from serve.engine.sim_replica import SimReplica
from serve.errors import ConfigError, GatewayError
from serve.gateway import Gateway, read_body
from serve.policy import compile_for
from serve.protocol import request_headers
from serve.router import Endpoint, RemoteRoute, ReplicaRoute, Route
from serve.telemetry import Telemetry
from serve.upstream import Upstream

log = logging.getLogger("ray.serve.specgate.app")

_READY_TIMEOUT_S = 5.0
_FACTS_PERIOD_S = 30.0
_REPLICAS = {"vllm": VllmReplica, "sim": SimReplica}


@ray_serve.ingress()
class Ingress:
    """The HTTP side of one gateway replica.

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
        self._gateway = Gateway(
            self._config, self._compile(), self._routes, self._upstream, self._telemetry
        )
        self._watching = asyncio.get_running_loop().create_task(self._watch_facts())

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        """Ray Serve's hook."""
        app = fastapi.FastAPI(title="specgate", docs_url=None, redoc_url=None, openapi_url=None)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_route(path, self._gateway, methods=["POST"])  # plain ASGI: no framework on the hot path
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{model:path}", self.model, methods=["GET"])
        app.add_api_route("/v1/policy", self.policy, methods=["GET"])
        app.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_api_route("/ready", self.ready, methods=["GET"])
        app.add_api_route("/metrics", self.metrics, methods=["GET"])
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
            policy = compile_for(config, self._learned)
        except (ConfigError, ValueError) as error:
            self._policy_error = str(error)
            log.error("the new policy is refused, the old one stays: %s", error)  # noqa: TRY400 - no traceback needed
            return
        self._policy_config, self._policy_error = config.policy, None
        self._gateway.adopt(policy)
        log.info("policy %s adopted", policy.digest)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [_model_object(name) for name in self._config.models]}

    async def model(self, model: str) -> dict[str, Any]:
        name = self._config.resolve(model)
        if name is None:
            from serve.errors import ModelNotFoundError

            raise ModelNotFoundError.unknown(model, self._config.models)
        return _model_object(name)

    async def policy(self) -> dict[str, Any]:
        """The active policy: its digest, what each pool may do, and why a newer one was refused."""
        return {**self._gateway.policy.to_dict(), "refused_update": self._policy_error}

    async def explain(self, request: fastapi.Request) -> dict[str, Any]:
        headers = request_headers(request.headers.raw)
        body = await read_body(request.receive, headers, self._config.limits.max_body_bytes)
        return await self._gateway.explain(body, headers)

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def ready(self) -> JSONResponse:
        """200 when every pool has a replica that answers."""
        states = dict(zip(self._routes, await asyncio.gather(*map(_is_up, self._routes.values())), strict=True))
        pools = {f"{model}/{pool}": "up" if up else "starting or down" for (model, pool), up in states.items()}
        return JSONResponse({"ready": all(states.values()), "pools": pools}, 200 if all(states.values()) else 503)

    async def metrics(self) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def __del__(self) -> None:
        self._watching.cancel()
        self._telemetry.shutdown()
        await self._upstream.close()

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


def build(args: GatewayConfig) -> ray_serve.Application:
    """Ray Serve's entry point: `import_path: serve.app:build`."""
    pools = [
        (model, pool, _pool_deployment(model, pool, settings).bind(model, pool, _slice(args, model, pool)))
        for model, _, pool, settings in args.each_pool()
        if settings.kind in _REPLICAS
    ]
    ingress = ray_serve.deployment(Ingress).options(
        name="Gateway",
        num_replicas=args.replicas,
        max_ongoing_requests=args.max_ongoing_requests,
        ray_actor_options=_with_env({"num_cpus": 0.5, **args.ray_actor_options}, {}),
        health_check_timeout_s=30,
    )
    return ingress.bind(args.model_dump(mode="json"), pools)


def routes_of(config: GatewayConfig, handles: dict[tuple[str, str], DeploymentHandle]) -> dict[tuple[str, str], Route]:
    """A route for every pool of the configuration."""
    limits = config.limits
    routes: dict[tuple[str, str], Route] = {}
    for model, _, pool, settings in config.each_pool():
        if settings.url is not None:
            key = os.environ.get(settings.api_key_env) if settings.api_key_env else None
            if settings.api_key_env and not key:
                raise ConfigError(f"{model}/{pool}: the environment variable {settings.api_key_env} is not set")
            routes[model, pool] = RemoteRoute(Endpoint(settings.url.rstrip("/"), key), settings.facts)
        else:
            handle = handles[model, pool]
            routes[model, pool] = ReplicaRoute(
                f"{model}/{pool}", handle, limits.queue_timeout_s, limits.retry_after_s
            )
    return routes


def _pool_deployment(model: str, pool: str, settings: PoolConfig) -> ray_serve.Deployment:
    scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.autoscaling is not None:
        scaling = {"autoscaling_config": settings.autoscaling.model_dump()}
    if settings.placement_group_bundles is not None:
        scaling |= {
            "placement_group_bundles": list(settings.placement_group_bundles),
            "placement_group_strategy": settings.placement_group_strategy,
        }
    return ray_serve.deployment(_REPLICAS[settings.kind]).options(
        name=deployment_name(model, pool),
        max_ongoing_requests=settings.max_ongoing_requests,
        max_queued_requests=settings.max_queued_requests,
        graceful_shutdown_timeout_s=settings.graceful_shutdown_timeout_s,
        health_check_period_s=settings.health_check_period_s,
        health_check_timeout_s=settings.health_check_timeout_s,
        ray_actor_options=_with_env({"num_cpus": 1, **settings.ray_actor_options}, settings.env),
        **scaling,
    )


def deployment_name(model: str, pool: str) -> str:
    """The pool's name in Ray Serve; slashes would read as paths in its logs and metrics."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{model}--{pool}")


def _slice(args: GatewayConfig, model: str, pool: str) -> dict[str, Any]:
    """The part of the configuration that one pool depends on: a change elsewhere must not restart its engines."""
    config = args.models[model]
    return config.model_copy(update={"pools": {pool: config.pools[pool]}}).model_dump(mode="json")


def _with_env(options: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    runtime_env = dict(options.get("runtime_env") or {})
    return {**options, "runtime_env": {**runtime_env, "env_vars": environment({**runtime_env.get("env_vars", {}), **env})}}


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
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}}, status)
