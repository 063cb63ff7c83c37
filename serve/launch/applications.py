"""Splits one Serve config into applications: the gateway's, and one for each pool that runs in the cluster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serve.config import deployment_options
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

if TYPE_CHECKING:
    from serve.app import PoolArgs

# Fields that only the gateway reads: promoting a canary must not restart its engines.
_POLICY_OF_MODEL = {"version": True, "quantization": True, "hybrid": True, "guard": True}
_POLICY_OF_POOL = {"proven": True, "canary_share": True, "facts": True}
# Fields that Ray Serve can change without restarting replicas: they go into `deployments`, not `args`.
_OPTIONS_OF_GATEWAY = dict.fromkeys(deployment_options.GATEWAY, True)
_OPTIONS_OF_POOL = dict.fromkeys(deployment_options.POOL, True)
_SHARED_KEYS = ("runtime_env", "logging_config")


def split_applications(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Serve config with an application for the gateway, and one for each pool that runs in the cluster.

    Ray Serve versions an application by its `args`: any change of them replaces all its replicas. So each application's
    `args` hold only what its replicas depend on; options that can change in place are in its `deployments`.

    Raises:
        ConfigError: The document's `deployments` name an unknown deployment.
    """
    from serve.app import GATEWAY_NAME, deployment_name, hosted

    (application,) = document["applications"]
    config = GatewayConfig.parse(application["args"])
    pools = {deployment_name(*key): pool for key, pool in hosted(config).items()}
    options = {GATEWAY_NAME: deployment_options.gateway_options(config)}
    for name, pool in pools.items():
        options[name] = deployment_options.pool_options(pool.config.pools[pool.pool])
    stated = {deployment["name"]: deployment for deployment in application.get("deployments", ())}
    if unknown := sorted(stated.keys() - options.keys()):
        raise ConfigError(f"`deployments` names {', '.join(unknown)}; there are {', '.join(options)}")
    for name, pool in pools.items():
        if (count := _stated_replicas(stated.get(name, {}))) is not None:
            options[GATEWAY_NAME]["user_config"]["least_replicas"][pool.model][pool.pool] = count
    deployments = {name: _laid_over({"name": name, **own}, stated.get(name, {})) for name, own in options.items()}
    gateway = {
        **application,
        "import_path": "serve.app:build_gateway",
        "args": _gateway_args(config),
        "deployments": [deployments[GATEWAY_NAME]],
    }
    shared = {key: application[key] for key in _SHARED_KEYS if key in application}
    engines = [
        {
            **shared,
            "name": name,
            "route_prefix": None,
            "import_path": "serve.app:build_pool",
            "args": _pool_args(pool),
            "deployments": [deployments[name]],
        }
        for name, pool in pools.items()
    ]
    return {**document, "applications": [gateway, *engines]}


def _stated_replicas(stated: Mapping[str, Any]) -> int | None:
    """Returns how many replicas a pool's own entry in `deployments` wants at least; None if it says nothing."""
    if scaling := stated.get("autoscaling_config"):
        return int(scaling.get("min_replicas", 1))
    count = stated.get("num_replicas")
    return count if isinstance(count, int) else None


def _laid_over(values: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with others in their place, but keeps what the gateway must know."""
    user_config = {**values.get("user_config", {}), **(stated.get("user_config") or {})}
    return {**values, **stated, **({"user_config": user_config} if user_config else {})}


def _gateway_args(config: GatewayConfig) -> dict[str, Any]:
    hosted = {
        name: {"pools": {pool: _OPTIONS_OF_POOL for pool, settings in model.pools.items() if settings.kind != "remote"}}
        for name, model in config.models.items()
    }
    exclude: dict[str, Any] = {**_OPTIONS_OF_GATEWAY, "models": hosted}
    return config.model_dump(mode="json", exclude_defaults=True, exclude=exclude)


def _pool_args(args: "PoolArgs") -> dict[str, Any]:
    own_pool = {args.pool: {**_POLICY_OF_POOL, **_OPTIONS_OF_POOL}}
    exclude: dict[str, Any] = {"config": {**_POLICY_OF_MODEL, "pools": own_pool}}
    return args.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
