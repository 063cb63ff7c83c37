"""The pools of a configuration, as the gateway reaches them, and the least replicas that each should have."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from serve.config.gateway import GatewayConfig
from serve.config.secret import LiveSecret
from serve.errors import ConfigError, GatewayError
from serve.routing.pool import Endpoint, Pool
from serve.routing.remote_pool import RemotePool
from serve.routing.waiting_room import WaitingTerms

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

PoolKey = tuple[str, str]  # model, pool

_FACTS_TIMEOUT_S = 5.0
_LEAST = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=0)]]])


def build_pools(
    config: GatewayConfig, handles: "dict[PoolKey, DeploymentHandle]", gateways: int = 1
) -> dict[PoolKey, Pool]:
    """Returns every pool of the configuration.

    `handles` are the deployments of those that run in this cluster; all `gateways` share what a remote pool takes.

    Raises:
        ConfigError: The key of a remote pool is missing.
    """
    limits = config.limits
    terms = WaitingTerms(None, limits.queue_timeout_s, limits.starve_s, limits.retry_after_s, limits.reserved_slots)
    pools: dict[PoolKey, Pool] = {}
    for model, _, pool, settings in config.each_pool():
        if settings.kind == "remote":
            key = settings.api_key(f"models.{model}.pools.{pool}")
            waiting = replace(terms, queued=settings.max_queued_requests)
            pools[model, pool] = RemotePool(
                [Endpoint(url, None) for url in settings.addresses], settings.facts, settings.max_ongoing_requests,
                waiting, f"{model}/{pool}", gateways, LiveSecret(key) if key else None, settings.routing,
            )  # fmt: skip
        else:
            from serve.routing.ray_pool import RayPool  # a gateway of remote pools does without Ray

            pools[model, pool] = RayPool(f"{model}/{pool}", handles[model, pool], terms, settings.routing)
    return pools


async def reported_facts(pool: Pool) -> dict[str, Any] | None:
    """Returns what all running replicas report about themselves; None if none answers in time."""
    try:
        async with asyncio.timeout(_FACTS_TIMEOUT_S):
            return dict(await pool.facts())
    except (GatewayError, TimeoutError):
        return None


class Scale:
    """The least replicas by pool: those of the configuration, unless Ray Serve has set others since. What may change in
    place, `specgate deploy` leaves out of the gateway's own configuration.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._configured = {(model, name): pool.least_replicas for model, _, name, pool in config.each_pool()}
        self._least: Mapping[PoolKey, int] = self._configured

    def read(self, given: Any) -> Mapping[PoolKey, int]:
        """Returns the least replicas of every pool, for `adopt`.

        Pools that are not named have what the configuration says.

        Raises:
            ConfigError: It names a pool that does not exist.
            ValueError: It is no such mapping.
        """
        least: Mapping[str, Mapping[str, int]] = _LEAST.validate_python(given)
        named = {(model, name): count for model, pools in least.items() for name, count in pools.items()}
        if unknown := sorted("/".join(key) for key in named.keys() - self._configured.keys()):
            known = ", ".join("/".join(key) for key in self._configured)
            raise ConfigError(f"user_config.least_replicas: there is no pool {', '.join(unknown)}; there are {known}")
        return {key: named.get(key, count) for key, count in self._configured.items()}

    def adopt(self, least: Mapping[PoolKey, int]) -> None:
        """Puts other numbers in force."""
        self._least = least

    def each(self) -> Iterator[tuple[PoolKey, int]]:
        """Yields every pool and its least replicas."""
        yield from self._least.items()

    def may_sleep(self, model: str, pool: str) -> bool:
        """Returns True if a pool may have no replica at all."""
        return not self._least[model, pool]
