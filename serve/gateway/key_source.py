"""The store of keys as a gateway replica reaches it: at the operator's door, on the head node."""

import asyncio
from pathlib import Path

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from serve.access.key_record import KeyChanges
from serve.access.key_store import KeyStore
from serve.access.live import AnyAccess, KeySource, LiveAccess, LocalKeySource, OpenAccess
from serve.config.access import AccessConfig
from serve.errors import SharedStateError

_TIMEOUT_S = 5.0


class DoorKeySource:
    """Asks the door.

    Args:
        door: The door's deployment.
    """

    def __init__(self, door: DeploymentHandle) -> None:
        self._door = door

    async def sync(self, version: int, used: frozenset[str]) -> KeyChanges:
        """Returns what has changed after a version, and tells which keys were used.

        Args:
            version: The store's version that is known here.
            used: Ids of keys.

        Raises:
            SharedStateError: The door can't be reached, or its store can't be used.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                changes: KeyChanges = await self._door.sync_keys.remote(version, used)
        except (RayError, RayServeException, TimeoutError) as error:
            raise SharedStateError(f"The operator's door does not tell of keys: {error!r}") from error
        return changes

    def close(self) -> None:
        """Does nothing: the store is the door's."""


def live_access(config: AccessConfig, door: DeploymentHandle | None) -> AnyAccess:
    """Returns the keys of a gateway replica.

    Args:
        config: Says where keys come from.
        door: The door's deployment; None outside Ray, as in tests, where the store is opened here.

    Raises:
        ConfigError: As of `LiveAccess`.
    """
    if config.mode == "off":
        return OpenAccess()
    source: KeySource | None = None
    if config.state_dir is not None:
        source = DoorKeySource(door) if door is not None else LocalKeySource(KeyStore(Path(config.state_dir)))
    return LiveAccess(config, source)
