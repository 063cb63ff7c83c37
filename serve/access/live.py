"""Keeps the keys that a process knows true to their sources: the file, the store and the identity provider."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from serve.access.key_file import read_key_file
from serve.access.key_record import KeyChanges
from serve.access.key_ring import KeyRing
from serve.access.key_store import KeyStore
from serve.access.oidc import TokenVerifier, fetch_provider_keys, read_provider_keys
from serve.access.principal import Authenticate, everybody
from serve.config.access import AccessConfig
from serve.errors import ConfigError
from serve.shared.link import Link, LocalLink
from serve.shared.report import Acknowledgement, Report, Reporter

log = logging.getLogger("ray.serve.specgate.access")

_SYNC_PERIOD_S = 1.0
_LOOK_PERIOD_S = 0.05  # the command line writes beside the store's owner, so only the file shows changes
_FETCH_PERIOD_S = 300.0
_FETCH_AGAIN_S = 30.0  # after a token with a key that the provider did not have, or did not tell
_FETCH_FIRST_S = 5.0  # while no key of the provider is known, so that no token can be checked


class KeyQuery(NamedTuple):
    """The question of a process to the store.

    Attributes:
        used: Ids of the keys that were used since the last query.
    """

    version: int
    used: frozenset[str]


class KeyFeed:
    """The store, for the processes that follow its changes."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        """Returns what has changed after a version, and notes which keys were used.

        The answer waits until there is something, a second at the most, so that a new key is valid everywhere at once.

        Raises:
            sqlite3.Error: The file can't be used.
        """
        until_s = time.monotonic() + _SYNC_PERIOD_S
        self._store.mark_used(used)
        while True:
            changes = self._store.changes_since(version)
            if changes.version != version or time.monotonic() >= until_s:
                return changes
            await asyncio.sleep(_LOOK_PERIOD_S)


class _Watched:
    """A file whose content is taken over whenever it changes; a bad one changes nothing. It is read in a thread by
    `read`, which returns what takes the content over, or raises `ConfigError`.

    Raises:
        ConfigError: The file is bad already now.
    """

    def __init__(self, path: Path, read: Callable[[Path], Callable[[], None]]) -> None:
        self._path = path
        self._read = read
        self._stamp = _stamp(path)
        read(path)()

    async def refresh(self) -> None:
        """Takes over the file if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            adopt = await asyncio.to_thread(self._read, self._path)
            adopt()
            log.info("adopted the new %s", self._path)
        except ConfigError as error:
            log.error("refused the new %s and kept the old one: %s", self._path, error)


class LiveAccess:
    """The keys of one process, kept up to date by `run`. Access is required.

    Args:
        config: Says where keys come from.
        store: The way to what has the methods of `KeyFeed`; None without a store.
        own: The store, if it is this process's to close.

    Raises:
        ConfigError: The file of keys, or that of the identity provider, is bad.
    """

    def __init__(self, config: AccessConfig, store: Link | None, own: KeyStore | None = None) -> None:
        verifier = TokenVerifier(config.oidc, lambda name: self.ring.tenant(name)) if config.oidc is not None else None
        self.ring = KeyRing(config.stale_max_s if store is not None else None, verifier)
        self.authenticate: Authenticate = self.ring.authenticate
        self._store = store
        self._own = own
        self._reporter: Reporter[KeyQuery, KeyChanges] = Reporter(
            self._ask,
            lambda: KeyQuery(self.ring.version, self.ring.take_used()),
            self.ring.adopt,
            "the store of keys",
            "Until it can, the keys that are known stay valid for `access.stale_max_s`.",
            log,
        )
        self._verifier = verifier
        self._provider = config.oidc if config.oidc is not None and config.oidc.jwks_file is None else None
        self._fetched_s = float("-inf")
        self._watched: list[_Watched] = []
        if config.file is not None:
            self._watched.append(_Watched(Path(config.file), self._declared))
        if verifier is not None and config.oidc is not None and config.oidc.jwks_file is not None:
            keys_of = partial(_provider_keys, verifier)
            self._watched.append(_Watched(Path(config.oidc.jwks_file), keys_of))

    async def run(self) -> None:
        """Asks the sources once a second, for ever, and the store again as soon as it has sent changes."""
        while True:
            known, begun_s = self.ring.version, time.monotonic()
            await self.refresh()
            if self.ring.version == known:
                await asyncio.sleep(max(0.0, begun_s + _SYNC_PERIOD_S - time.monotonic()))

    async def refresh(self) -> None:
        """Asks each source once."""
        await asyncio.gather(self._sync(), self._fetch(), *(file.refresh() for file in self._watched))

    async def close(self) -> None:
        """Lets go of the store, once `run` has ended."""
        if self._own is not None:
            self._own.close()

    def _declared(self, path: Path) -> Callable[[], None]:
        return partial(self.ring.declare, *read_key_file(path))

    async def _sync(self) -> None:
        if self._store is not None:
            await self._reporter.sync()

    async def _ask(self, report: Report[KeyQuery, KeyChanges]) -> Acknowledgement[KeyChanges]:
        """Sends a report. Changes after a version are the same however often one asks, so a store keeps no answers."""
        assert self._store is not None
        changes = await self._store.call("sync_keys", *report.content)
        return Acknowledgement(report.number, report.seen + 1, changes)

    async def _fetch(self) -> None:
        if self._verifier is None or self._provider is None:
            return
        period_s = _FETCH_AGAIN_S if self._verifier.lacks_key else _FETCH_PERIOD_S
        if not self._verifier.knows_keys:
            period_s = _FETCH_FIRST_S
        if time.monotonic() - self._fetched_s < period_s:
            return
        self._fetched_s = time.monotonic()
        try:
            self._verifier.adopt(await asyncio.to_thread(fetch_provider_keys, self._provider))
        except ConfigError as error:
            self._verifier.lacks_key = True
            log.error("%s", error)


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
        ConfigError: As of `LiveAccess`.
    """
    if config.mode == "off":
        return OpenAccess()
    if config.state_dir is None or admin_api is not None:
        return LiveAccess(config, admin_api if config.state_dir is not None else None)
    store = KeyStore(Path(config.state_dir), mends=True)
    return LiveAccess(config, LocalLink(KeyFeed(store)), store)


def _provider_keys(verifier: TokenVerifier, path: Path) -> Callable[[], None]:
    return partial(verifier.adopt, read_provider_keys(path))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns what differs between two versions of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
