"""The store of keys as a gateway replica reaches it: at the admin API, on the head node."""

from pathlib import Path

from serve.access.key_record import KeyChanges
from serve.access.key_store import KeyStore
from serve.access.live import AnyAccess, KeySource, LiveAccess, LocalKeySource, OpenAccess
from serve.config.access import AccessConfig
from serve.errors import SharedStateError
from serve.shared.link import Link


class AdminKeySource:
    """Asks the admin API.

    Args:
        admin_api: The way to it.
    """

    def __init__(self, admin_api: Link) -> None:
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
            changes: KeyChanges = await self._admin_api.call("sync_keys", version, used)
        except SharedStateError as error:
            raise SharedStateError(f"The admin API does not send keys: {error}") from error
        return changes

    def close(self) -> None:
        """Does nothing: the store is the admin API's."""


def live_access(config: AccessConfig, admin_api: Link | None) -> AnyAccess:
    """Returns the keys of a gateway replica.

    Args:
        config: Says where keys come from.
        admin_api: The way to the admin API; None without one, as in tests, where the store is opened here.

    Raises:
        ConfigError: As of `LiveAccess`.
    """
    if config.mode == "off":
        return OpenAccess()
    source: KeySource | None = None
    if config.state_dir is not None:
        source = (
            AdminKeySource(admin_api)
            if admin_api is not None
            else LocalKeySource(KeyStore(Path(config.state_dir), mends=True))
        )
    return LiveAccess(config, source)
