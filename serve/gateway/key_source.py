"""The store of keys as a gateway replica reaches it: at the admin API, on the head node."""

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


class AdminKeySource:
    """Asks the admin API.

    Args:
        admin_api: The admin API's deployment.
    """

    def __init__(self, admin_api: DeploymentHandle) -> None:
        self._admin_api = admin_api

    async def sync(self, version: int, used: frozenset[str]) -> KeyChanges:
        """Returns what has changed after a version, and tells which keys were used.

        Args:
            version: The store's version that is known here.
            used: Ids of keys.

        Raises:
            SharedStateError: The admin API can't be reached, or its store can't be used.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                changes: KeyChanges = await self._admin_api.sync_keys.remote(version, used)
        except (RayError, RayServeException, TimeoutError) as error:
            raise SharedStateError(f"The admin API does not tell of keys: {error!r}") from error
        return changes

    def close(self) -> None:
        """Does nothing: the store is the admin API's."""


def live_access(config: AccessConfig, admin_api: DeploymentHandle | None) -> AnyAccess:
    """Returns the keys of a gateway replica.

    Args:
        config: Says where keys come from.
        admin_api: The admin API's deployment; None outside Ray, as in tests, where the store is opened here.

    Raises:
        ConfigError: As of `LiveAccess`.
    """
    if config.mode == "off":
        return OpenAccess()
    source: KeySource | None = None
    if config.state_dir is not None:
        source = (
            AdminKeySource(admin_api) if admin_api is not None else LocalKeySource(KeyStore(Path(config.state_dir)))
        )
    return LiveAccess(config, source)
