"""The configuration of a gateway with simulated engines that tests may change, overload and kill."""

import copy
from collections.abc import Mapping
from typing import Any

_SMALL = {"kind": "sim", "ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_timeout_s": 30}
_STREAM = {"step_ms": 40, "content_tokens": [25, 25]}  # takes a second, with little work for the machine
_LONG_STREAM = {"step_ms": 1000, "content_tokens": [45, 45]}  # outlasts Ray Serve's default grace period
_SCALING = {
    "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 0.5,
    "look_back_period_s": 2, "metrics_interval_s": 0.5,
}  # fmt: skip


def _model(**pools: Any) -> dict[str, Any]:
    return {"family": "sim", "grammar": "hermes", "pools": {name: {**_SMALL, **each} for name, each in pools.items()}}


CONFIG: dict[str, Any] = {
    "replicas": 2,
    "ray_actor_options": {"num_cpus": 0.1},
    "graceful_shutdown_timeout_s": 120,
    "models": {
        "agent": _model(p={"routing": "sticky", "replicas": 3, "sim": _STREAM, "health_check_period_s": 1}),
        "grown": _model(p={"autoscaling": _SCALING, "sim": _STREAM}),
        "long": _model(p={"sim": _LONG_STREAM}),
        "homes": _model(
            far={"sim": _STREAM, "ray_actor_options": {"num_cpus": 0, "resources": {"worker": 0.1}}},
            near={"sim": _STREAM},
        ),
    },
}


def changed(config: Mapping[str, Any], pool: str, **settings: Any) -> dict[str, Any]:
    """Returns a configuration with changed settings of `model/pool`; those of the simulated engine are merged."""
    config = copy.deepcopy(dict(config))
    model, _, name = pool.partition("/")
    pool_config = config["models"][model]["pools"][name]
    pool_config |= {**settings, "sim": pool_config["sim"] | settings.get("sim", {})}
    return config


def hello(model: str, number: int = 0) -> dict[str, Any]:
    """Returns a request of its own; every other one carries as much text as an agent's."""
    return {"model": model, "messages": [{"role": "user", "content": f"hello {number} " + "x" * (number % 2 * 40_000)}]}
