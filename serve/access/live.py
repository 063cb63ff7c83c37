"""Keeps the keys that a process knows true to their sources: the file, the store and the identity provider.

Each source is asked on its own: a provider that is slow to answer holds up no revoked key of the store.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from serve.access.key_file import read_key_file
from serve.access.key_record import KeyChanges
from serve.access.key_ring import KeyRing
from serve.access.key_store import KeyStore, open_store
from serve.access.oidc import TokenVerifier, fetch_provider_keys, read_provider_keys
from serve.access.principal import Authenticate, everybody
from serve.config.access import AccessConfig, OidcConfig
from serve.errors import ConfigError, SharedStateError
from serve.shared.link import Link, LocalLink

log = logging.getLogger("ray.serve.specgate.access")

Content = TypeVar("Content")
_PERIOD_S = 1.0
_FETCH_PERIOD_S = 300.0
_FETCH_AGAIN_S = 30.0  # after a token with a key that the provider did not have, or did not tell
_FETCH_FIRST_S = 5.0  # while no key of the provider is known, so that no token can be checked


class _Source(Protocol):
    """Where keys come from."""

    async def refresh(self) -> bool:
        """Takes over what has changed there; returns False if that was nothing."""
        ...


class _Store:
    """The store of keys, asked for what has changed since its version that is known here; see `KeyStore.sync_keys`."""

    def __init__(self, link: Link, ring: KeyRing) -> None:
        self._link = link
        self._ring = ring
        self._untold: frozenset[str] = frozenset()  # ids of keys that were used, until an answer says that it knows
        self._is_silent = False
        self._asking = asyncio.Lock()  # an answer overtaken by a later one would bring a revoked key back

    async def refresh(self) -> bool:
        async with self._asking:
            return await self._ask()

    async def _ask(self) -> bool:
        known = self._ring.version
        self._untold |= self._ring.take_used()
        try:
            changes: KeyChanges = await self._link.call("sync_keys", known, self._untold)
        except SharedStateError as error:
            if not self._is_silent:
                meanwhile = "Until it can, the keys that are known stay valid for `access.stale_max_s`."
                log.warning("%s %s %r", error, meanwhile, error.__cause__)
            self._is_silent = True
            return False
        if self._is_silent:
            log.warning("the store of keys is back")
        self._is_silent = False
        self._untold = frozenset()
        self._ring.adopt(changes)
        return changes.version != known


class _Provider:
    """The keys that an identity provider publishes, fetched in a thread when it is time."""

    def __init__(self, config: OidcConfig, verifier: TokenVerifier) -> None:
        self._config = config
        self._verifier = verifier
        self._fetched_s = float("-inf")

    async def refresh(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        period_s = _FETCH_AGAIN_S if self._verifier.lacks_key else _FETCH_PERIOD_S
        if not self._verifier.knows_keys:
            period_s = _FETCH_FIRST_S
        if now_s - self._fetched_s < period_s:
            return False
        self._fetched_s = now_s
        try:
            self._verifier.adopt(await asyncio.to_thread(fetch_provider_keys, self._config))
        except ConfigError as error:
            self._verifier.lacks_key = True
            log.error("%s", error)
            return False
        return True


class _File(Generic[Content]):
    """A file whose content is taken over whenever it changes; a bad one changes nothing, nor does one that is being
    written: the part that is there may be sound, and lack keys. It is read in a thread by `read`, which raises
    `ConfigError` for a bad one.

    Raises:
        ConfigError: The file is bad already now.
    """

    def __init__(self, path: Path, read: Callable[[Path], Content], adopt: Callable[[Content], None]) -> None:
        self._path = path
        self._read = read
        self._adopt = adopt
        self._stamp = _stamp(path)
        adopt(read(path))

    async def refresh(self) -> bool:
        stamp = await asyncio.to_thread(_stamp, self._path)  # the folder may be another machine's, which may be away
        if stamp == self._stamp:
            return False
        try:
            found = await asyncio.to_thread(self._read, self._path)
            if await asyncio.to_thread(_stamp, self._path) != stamp:
                return False
            if stamp is not None and stamp[1] == 0:
                raise ConfigError("it is empty, as where a disk is full; to end all keys, write `keys: []`")
            self._adopt(found)
            log.info("adopted the new %s", self._path)
        except ConfigError as error:
            log.error("refused the new %s and kept the old one: %s", self._path, error)
        self._stamp = stamp
        return True


class LiveAccess:
    """The keys of one process, kept up to date by `run`. Access is required.

    Args:
        store: The way to what has `KeyStore.sync_keys`; None without a store.
        own: The store, if it is this process's to close.

    Raises:
        ConfigError: The file of keys, or that of the identity provider, is bad.
    """

    def __init__(self, config: AccessConfig, store: Link | None, own: KeyStore | None = None) -> None:
        oidc = config.oidc
        verifier = TokenVerifier(oidc, lambda name: self.ring.tenant(name)) if oidc is not None else None
        self.ring = KeyRing(config.stale_max_s if store is not None else None, verifier)
        self.authenticate: Authenticate = self.ring.authenticate
        self._own = own
        self._sources: list[_Source] = []
        if store is not None:
            self._sources.append(_Store(store, self.ring))
        if config.file is not None:
            self._sources.append(_File(Path(config.file), read_key_file, lambda found: self.ring.declare(*found)))
        if oidc is not None and verifier is not None:
            if oidc.jwks_file is None:
                self._sources.append(_Provider(oidc, verifier))
            else:
                self._sources.append(_File(Path(oidc.jwks_file), read_provider_keys, verifier.adopt))

    async def run(self) -> None:
        """Asks each source once a second, for ever, and again as soon as it had something new."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(_follow(source))

    async def refresh(self) -> None:
        """Asks each source once."""
        await asyncio.gather(*(source.refresh() for source in self._sources))

    async def close(self) -> None:
        """Lets go of the store, once `run` has ended."""
        if self._own is not None:
            self._own.close()


class OpenAccess:
    """No access control: everybody may ask, and there are no keys; see `LiveAccess`."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        self.authenticate: Authenticate = everybody

    async def run(self) -> None:
        """Does nothing: there are no sources."""

    async def refresh(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""


AnyAccess = OpenAccess | LiveAccess


def live_access(config: AccessConfig, admin_api: Link | None) -> AnyAccess:
    """Returns the keys of a gateway replica. Without an admin API, as in tests, the store is opened here.

    Raises:
        ConfigError: As of `LiveAccess`, or the store can't be used.
    """
    if config.mode == "off":
        return OpenAccess()
    if config.state_dir is None or admin_api is not None:
        return LiveAccess(config, admin_api if config.state_dir is not None else None)
    store = open_store(Path(config.state_dir), mends=True)
    return LiveAccess(config, LocalLink(store), store)


async def _follow(source: _Source) -> None:
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        if not await source.refresh():
            await asyncio.sleep(max(0.0, begun_s + _PERIOD_S - loop.time()))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns what differs between two versions of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
