"""The Ray Serve application: one ingress deployment, and one deployment for each pool that runs in this cluster."""

# No `from __future__ import annotations` here: Ray reads the annotation of `build` with `inspect`, and as a string it
# is no class, so a misspelt key in the Serve config would pass unvalidated.

import re
from typing import Any

from ray import serve as ray_serve
from ray.serve.config import RequestRouterConfig

from serve.config import GatewayConfig, PoolConfig
from serve.engine.replica import VllmReplica, environment
from serve.engine.sim_replica import SimReplica
from serve.ingress import GatewayReplica

# Without an app: `GatewayReplica.__serve_build_asgi_app__` makes it in the replica, around the replica's own state.
Ingress = ray_serve.ingress()(GatewayReplica)
_REPLICAS = {"vllm": VllmReplica, "sim": SimReplica}
# On the ring every other replica is a fall-back, in an order of the session's own: sessions that lose their replica, or
# find it full, spread over all others.
_ROUTERS = {
    "balanced": RequestRouterConfig(),
    "sticky": RequestRouterConfig(
        request_router_class="ray.serve.experimental.consistent_hash_router:ConsistentHashRouter",
        request_router_kwargs={"num_fallback_replicas": 1_000_000},
    ),
}


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


def _pool_deployment(model: str, pool: str, settings: PoolConfig) -> ray_serve.Deployment:
    scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.autoscaling is not None:
        policy = {"policy_function": "serve.autoscaling:by_ongoing_requests"}
        scaling = {"autoscaling_config": {**settings.autoscaling.model_dump(), "policy": policy}}
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
        request_router_config=_ROUTERS[settings.routing],
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
    return {
        **options,
        "runtime_env": {**runtime_env, "env_vars": environment({**runtime_env.get("env_vars", {}), **env})},
    }
