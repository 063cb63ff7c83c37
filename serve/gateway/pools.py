"""The pools of a configuration as the gateway reaches them."""

import os

from ray.serve.handle import DeploymentHandle

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.routing.endpoint import Endpoint
from serve.routing.pool import RemoteRoute, ReplicaRoute, Route


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
                f"{model}/{pool}", handle, limits.queue_timeout_s, limits.retry_after_s, settings.routing == "sticky"
            )
    return routes
