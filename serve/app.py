"""Gateway and pools as Ray Serve applications: a single one, or one for each, so that each can change alone."""

# No `from __future__ import annotations` here: Ray reads the annotation of `build` with `inspect` and ignores it if it
# is a string, so that a misspelt key in the Serve config would pass unvalidated.

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve as ray_serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from serve.admin.deployment import AdminApi
from serve.config.gateway import GatewayConfig
from serve.config.pool import HOSTED, ModelConfig, PoolConfig
from serve.engine.kinds import kind_of, with_traces
from serve.errors import ConfigError
from serve.gateway.ingress import GatewayReplica

# No app is passed: `GatewayReplica.__serve_build_asgi_app__` builds it in the replica, around the replica's own state.
Ingress = ray_serve.ingress()(GatewayReplica)
GATEWAY_NAME = "Gateway"
ADMIN_NAME = "AdminApi"
ROOT = "Root"  # the ingress of a pool's application
# What replicas have beside their node's environment. Ray's dashboard and logs show it, so nothing of the environment in
# which the applications are built is added: there may be keys (docs/adr/0057).
_ENVIRONMENT = {
    # Most containers forbid bytecode. Without it, every process of an engine compiles torch and vLLM from source.
    "PYTHONDONTWRITEBYTECODE": "",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # a host of `requests.media_hosts` may lead an engine to any other
    "VLLM_NO_USAGE_STATS": "1",
}
_BALANCED = RequestRouterConfig(request_router_class="serve.routing.request_routers:BalancedRouter")
# On the ring all other replicas are fall-backs, in an order that differs by session: sessions that lose their replica,
# or find it full, spread over all the others.
_ROUTERS = {
    "balanced": _BALANCED,
    "prefix": _BALANCED,
    "sticky": RequestRouterConfig(
        request_router_class="serve.routing.request_routers:StickyRouter",
        request_router_kwargs={"num_fallback_replicas": 1_000_000},
    ),
}
_LIMITS = ("max_ongoing_requests", "max_queued_requests")
_TIMES = ("graceful_shutdown_timeout_s", "health_check_period_s", "health_check_timeout_s")
# Fields that Ray Serve can change without restarting replicas: `specgate deploy` sends them outside an application's
# `args`, a change of which replaces every replica. Not the gateway's `max_ongoing_requests`: each replica enforces it.
CHANGEABLE_OF_GATEWAY = frozenset({"replicas", "graceful_shutdown_timeout_s"})
CHANGEABLE_OF_POOL = frozenset({"replicas", "autoscaling", *_LIMITS, *_TIMES})


class PoolArgs(BaseModel):
    """One pool of a model: the `args` of its application.

    Attributes:
        config: The model's, with that pool alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    pool: str
    config: ModelConfig


def build(args: GatewayConfig) -> ray_serve.Application:
    """Returns gateway and pools as one application (`import_path: serve.app:build`); a change of `args` replaces it."""
    return _gateway(args, {key: _engines(pool) for key, pool in hosted(args).items()})


def build_gateway(args: GatewayConfig) -> ray_serve.Application:
    """Returns the gateway alone; each of its pools is an application of its own, from `build_pool`."""
    return _gateway(args, {key: DeploymentHandle(deployment_name(*key), deployment_name(*key)) for key in hosted(args)})


def build_pool(args: PoolArgs) -> ray_serve.Application:
    """Returns one pool. Ray Serve versions applications as a whole: only a pool with its own can change alone."""
    return ray_serve.deployment(_Root).options(name=ROOT, ray_actor_options={"num_cpus": 0}).bind(_engines(args))


class _Root:
    """The ingress that Ray Serve demands of every application; this one has no route.

    The engines can't be the ingress: Ray Serve would open a port of its own for them, and refuse a request router.
    """

    def __init__(self, engines: DeploymentHandle) -> None:
        del engines


def hosted(args: GatewayConfig) -> dict[tuple[str, str], PoolArgs]:
    """Returns the pools that run in the cluster, by model and pool name.

    Raises:
        ConfigError: Ray Serve would take two of them for one.
    """
    pools = {
        (name, pool): PoolArgs(
            model=name,
            pool=pool,
            config=model.model_copy(
                update={"pools": {pool: with_traces(name, model, pool, args.telemetry.traces_endpoint)}}
            ),
        )
        for name, model, pool, settings in args.each_pool()
        if settings.kind != "remote"
    }
    by_name: dict[str, tuple[str, str]] = {}
    for key in pools:
        if (other := by_name.setdefault(deployment_name(*key), key)) != key:
            raise ConfigError(f"Ray Serve would take {'/'.join(key)} for {'/'.join(other)}: rename one of these pools")
    return pools


def _gateway(args: GatewayConfig, pools: Mapping[tuple[str, str], Any]) -> ray_serve.Application:
    ingress = ray_serve.deployment(Ingress).options(
        name=GATEWAY_NAME,
        max_ongoing_requests=args.max_ongoing_requests,
        ray_actor_options=_with_env({"num_cpus": 0.5, **args.ray_actor_options}, {}),
        health_check_timeout_s=30,
        **gateway_options(args),
    )
    config = args.model_dump(mode="json")
    return ingress.bind(
        config, [(model, pool, engines) for (model, pool), engines in pools.items()], _admin_api(config)
    )


def _admin_api(config: dict[str, Any]) -> ray_serve.Application:
    """Returns the admin API, on the head node, whose address operators know."""
    admin_api = ray_serve.deployment(AdminApi).options(
        name=ADMIN_NAME,
        max_ongoing_requests=1000,
        ray_actor_options=_with_env({"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}, {}),
        graceful_shutdown_timeout_s=5,
    )
    return admin_api.bind(config)


def _engines(args: PoolArgs) -> ray_serve.Application:
    deployment = _pool_deployment(args.model, args.pool, args.config.pools[args.pool])
    return deployment.bind(args.model, args.pool, args.config.model_dump(mode="json"))


def _pool_deployment(model: str, pool: str, settings: PoolConfig) -> ray_serve.Deployment:
    group: dict[str, Any] = {}
    if settings.placement_group_bundles is not None:
        group = {
            "placement_group_bundles": list(settings.placement_group_bundles),
            "placement_group_strategy": settings.placement_group_strategy,
        }
    return ray_serve.deployment(kind_of(settings.kind).replica).options(
        name=deployment_name(model, pool),
        ray_actor_options=_with_env({"num_cpus": 1, **settings.ray_actor_options}, settings.env),
        request_router_config=_ROUTERS[settings.routing],
        **pool_options(settings),
        **group,
    )


def deployment_name(model: str, pool: str) -> str:
    """Returns the pool's name in Ray Serve, without slashes, which would look like paths in its logs and metrics."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{model}--{pool}")


def _with_env(options: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    runtime_env = dict(options.get("runtime_env") or {})
    return {
        **options,
        "runtime_env": {**runtime_env, "env_vars": {**_ENVIRONMENT, **runtime_env.get("env_vars", {}), **env}},
    }


def gateway_options(config: GatewayConfig) -> dict[str, Any]:
    """Returns the gateway's; what pools should have is in its `user_config`, for it can't be in its `args`."""
    least: dict[str, dict[str, int]] = {}
    for model, _, name, pool in config.each_pool(*HOSTED):
        least.setdefault(model, {})[name] = pool.least_replicas
    return {
        "num_replicas": config.replicas,
        "graceful_shutdown_timeout_s": config.graceful_shutdown_timeout_s,
        "user_config": {"least_replicas": least},
    }


def pool_options(settings: PoolConfig) -> dict[str, Any]:
    return _scaling(settings) | {name: getattr(settings, name) for name in (*_LIMITS, *_TIMES)}


def _scaling(settings: PoolConfig) -> dict[str, Any]:
    if settings.autoscaling is None:
        return {"num_replicas": settings.replicas}
    policy = {"policy_function": "serve.routing.autoscaling:by_ongoing_requests"}
    return {"num_replicas": "auto", "autoscaling_config": {**settings.autoscaling.model_dump(), "policy": policy}}
