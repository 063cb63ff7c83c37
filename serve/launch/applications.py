"""One Serve config as the applications that Ray Serve gets: the gateway's, and one for each pool of the cluster."""

from collections.abc import Mapping
from typing import Any

from serve.config import deployment_options as in_place
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

# What only the gateway goes by: to promote a canary must not restart its engines.
_MODELS_POLICY = {"version": True, "quantization": True, "hybrid": True, "guard": True}
_POOLS_POLICY = {"proven": True, "canary_share": True, "facts": True}
_POOLS_IN_PLACE = dict.fromkeys(in_place.POOL, True)
_GATEWAYS_IN_PLACE = dict.fromkeys(in_place.GATEWAY, True)


def apart(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with an application for the gateway, and one for each pool that runs in the cluster.

    Ray Serve versions an application by its `args`: any change of them replaces all its replicas. So each one's `args`
    are what it depends on, and what can change while it goes on stands in its `deployments`.

    Raises:
        ConfigError: `deployments` of the document names one that there is not.
    """
    from serve.app import GATEWAY_NAME, deployment_name, hosted

    (application,) = document["applications"]
    config = GatewayConfig.parse(application["args"])
    pools = {deployment_name(*key): each for key, each in hosted(config).items()}
    options = {GATEWAY_NAME: in_place.gateway_options(config)}
    options |= {name: in_place.pool_options(each.config.pools[each.pool]) for name, each in pools.items()}
    said = {each["name"]: each for each in application.get("deployments", ())}
    if unknown := sorted(said.keys() - options.keys()):
        raise ConfigError(f"`deployments` names {', '.join(unknown)}; there are {', '.join(options)}")

    def tuned(name: str) -> list[dict[str, Any]]:
        return [{"name": name, **options[name], **said.get(name, {})}]

    gateways_args = config.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={**_GATEWAYS_IN_PLACE, "models": {"__all__": {"pools": {"__all__": _POOLS_IN_PLACE}}}},
    )
    gateway = {
        **application,
        "import_path": "serve.app:build_gateway",
        "args": gateways_args,
        "deployments": tuned(GATEWAY_NAME),
    }
    shared = {key: application[key] for key in ("runtime_env", "logging_config") if key in application}
    engines = [
        {
            **shared,
            "name": name,
            "route_prefix": None,
            "import_path": "serve.app:build_pool",
            "args": each.model_dump(
                mode="json",
                exclude_defaults=True,
                exclude={"config": {**_MODELS_POLICY, "pools": {each.pool: {**_POOLS_POLICY, **_POOLS_IN_PLACE}}}},
            ),
            "deployments": tuned(name),
        }
        for name, each in pools.items()
    ]
    return {**document, "applications": [gateway, *engines]}
