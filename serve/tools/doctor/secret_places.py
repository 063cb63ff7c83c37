"""Secrets of pools: those that are missing here, and those that stand where everybody sees them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig
from serve.errors import ConfigError

_SECRET_ARGS = ("api-key", "hf-token")
_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|OTLP\w*_HEADERS)$", re.IGNORECASE)


def secret_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what is wrong); a warning each, because the gateway's nodes may differ from this one."""
    for name, model, pool, settings in config.each_pool():
        key = settings.api_key(f"models.{name}.pools.{pool}")
        try:
            if key is not None:
                key.read()
        except ConfigError as error:
            yield name, pool, str(error)
        args = model.engine_args_of(pool)
        shown = [f"engine_args {each}" for each in _SECRET_ARGS if isinstance(args.get(each), str)]
        shown += [each for each in _variables(settings) if _SECRET_NAME.search(each)]
        if shown:
            yield (
                name,
                pool,
                f"Ray's dashboard shows {', '.join(shown)}: set it in the environment of the nodes instead",
            )


def _variables(settings: PoolConfig) -> Mapping[str, Any]:
    runtime_env = settings.ray_actor_options.get("runtime_env") or {}
    return {**runtime_env.get("env_vars", {}), **settings.env}
