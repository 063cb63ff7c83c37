"""Options of deployments that Ray Serve can change without restarting replicas.

`specgate deploy` sends them outside an application's `args`, because a change of `args` replaces every replica.
"""

from typing import Any

from serve.config.gateway import GatewayConfig
from serve.config.pool import HOSTED, PoolConfig

_LIMITS = ("max_ongoing_requests", "max_queued_requests")
_TIMES = ("graceful_shutdown_timeout_s", "health_check_period_s", "health_check_timeout_s")
# Not the gateway's `max_ongoing_requests`: each replica enforces it, so it is among the `args`.
GATEWAY = frozenset({"replicas", "graceful_shutdown_timeout_s"})
POOL = frozenset({"replicas", "autoscaling", *_LIMITS, *_TIMES})


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
