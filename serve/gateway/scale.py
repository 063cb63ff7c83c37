"""The least replicas that each pool should have; they change without a restart of the gateway."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from serve.config.gateway import GatewayConfig
from serve.gateway.pools import PoolKey

_LEAST = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=0)]]])


class Scale:
    """The least replicas by pool.

    Args:
        config: Says them, unless Ray Serve has set others since: `specgate deploy` leaves out of the gateway's own
            configuration what may change in place.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._configured = {(model, name): pool.least_replicas for model, _, name, pool in config.each_pool()}
        self._least: Mapping[PoolKey, int] = self._configured

    def read(self, given: Any) -> Mapping[PoolKey, int]:
        """Returns the least replicas of every pool, for `adopt`.

        Args:
            given: By model and pool; those that are not named have what the configuration says.

        Raises:
            ValueError: It is no such mapping.
        """
        least: Mapping[str, Mapping[str, int]] = _LEAST.validate_python(given)
        named = {(model, name): count for model, pools in least.items() for name, count in pools.items()}
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
