"""Keys and tenants in one SQLite file: what the command line and the admin API write.

The file has one owner that replicas ask, and may be written by a command beside it: what changed is told by versions in
the file itself. WAL needs a local disk. How a replica asks is in `serve/access/live.py`.
"""

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from serve.access.grants import EVERY_TENANT, LOCAL, check_grant, check_manages, check_shares, shared_by
from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_record import IssuedKey, KeyChanges, KeyRecord, SecretHash
from serve.access.key_text import digest, new_id, new_token, without_secrets
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits
from serve.errors import ConfigError, InvalidRequestError
from serve.shared.database_file import check, damage, is_damaged, is_odd, put_aside, transaction

log = logging.getLogger("ray.serve.specgate.access")

FILE_NAME = "access.sqlite"
GRACE_S = 24 * 3600.0

Row = TypeVar("Row", KeyRecord, Tenant)
_COPY_NAME = "access.copy.sqlite"
_BUSY_TIMEOUT_S = 5.0
_MOST_OWN_KEYS = 1000  # of a tenant whose own keys make more: each is in the memory of every replica
_NEWS_WAIT_S = 1.0
_LOOK_PERIOD_S = 0.05  # the command line writes beside the store's owner, so only the file shows changes
_SCHEMA = """
CREATE TABLE IF NOT EXISTS version (oldest INTEGER NOT NULL, newest INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, version INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0,
    last_used_day TEXT NOT NULL DEFAULT '', record BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS tenants (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, removed INTEGER NOT NULL DEFAULT 0, terms BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS keys_by_version ON keys (version);
CREATE INDEX IF NOT EXISTS tenants_by_version ON tenants (version);
"""
_COLUMNS = """
SELECT t.name, c.name, c.type FROM sqlite_schema t, pragma_table_info(t.name) c
WHERE t.name IN ('version', 'keys', 'tenants') ORDER BY 1, 2
"""


def _nobody(_: object) -> None:
    """Witnesses nothing."""


class KeyStore:
    """The store. Its methods check what the principal who asks may do.

    Args:
        folder: Of the file, made if it is missing; None keeps everything in memory.
        mends: Whoever opens it is its owner: a damaged file is put aside, and the copy of the last change used instead.

    Raises:
        sqlite3.Error: The file can't be used.
        OSError: Nor can its folder.
    """

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time, *, mends: bool = False) -> None:
        self._clock = clock
        self._folder = folder
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.Error as error:
            copy = folder / _COPY_NAME if folder is not None else None
            if not mends or copy is None or not copy.is_file() or not is_damaged(error):
                raise
            self._mend(copy, error)

    def close(self) -> None:
        self._db.close()

    def create(
        self, terms: KeyTerms, issuer: Principal = LOCAL, witness: Callable[[KeyRecord], None] = _nobody
    ) -> IssuedKey:
        """Makes a key. The witness is told of the key before it counts; if it raises, nothing is changed.

        Raises:
            InvalidRequestError: The issuer manages this tenant alone, which has as many keys as it can make.
            InsufficientScopeError: The issuer does not hold all that the key would.
        """
        issued = issue(terms, self._clock(), shared_by(issuer))
        key = issued.key
        check_grant(issuer, key)
        with self._change() as version:
            if EVERY_TENANT not in issuer.scopes:
                self._check_number(key.tenant)
            self._db.execute(
                "INSERT INTO keys (id, tenant, version, record) VALUES (?, ?, ?, ?)",
                (key.id, key.tenant, version, msgspec.json.encode(key)),
            )
            witness(key)
        return issued

    def rotate(
        self,
        key_id: str,
        grace_s: float = GRACE_S,
        issuer: Principal = LOCAL,
        witness: Callable[[KeyRecord], None] = _nobody,
    ) -> IssuedKey:
        """Gives a key another secret; the one before is valid for a while, and those before it no more. A new secret is
        a key handed out, so the issuer must hold all that the key does.

        Raises:
            InvalidRequestError: There is no such key.
            InsufficientScopeError: The issuer does not hold all that the key does.
        """
        with self._change() as version:
            key = self._key(key_id, issuer)
            check_grant(issuer, key)
            check_shares(issuer, key)
            issued = rotated(key, self._clock() + grace_s)
            self._db.execute(
                "UPDATE keys SET record = ?, version = ? WHERE id = ?",
                (msgspec.json.encode(issued.key), version, key_id),
            )
            witness(issued.key)
        return issued

    def revoke(
        self, key_id: str, issuer: Principal = LOCAL, witness: Callable[[KeyRecord], None] = _nobody
    ) -> KeyRecord:
        """Ends a key for ever, and returns what it was. The issuer must hold all that the key does: the holder of less
        could end everybody's work.

        Raises:
            InvalidRequestError: There is no such key.
            InsufficientScopeError: The issuer may not manage the key's tenant, or does not hold all that the key does.
        """
        with self._change() as version:
            key = self._key(key_id, issuer)
            check_grant(issuer, key)
            self._db.execute("UPDATE keys SET revoked = 1, version = ? WHERE id = ?", (version, key_id))
            witness(key)
        return key

    def keys(self, issuer: Principal = LOCAL, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """Returns the keys that were not revoked, the oldest first. They are those of one tenant, or of all that the
        issuer may manage.

        Raises:
            InsufficientScopeError: The issuer may not manage that tenant.
        """
        if tenant is None and "keys" not in issuer.scopes:
            tenant = issuer.tenant.name
        if tenant is not None:
            check_manages(issuer, tenant)
        rows = self._db.execute(
            "SELECT record, last_used_day FROM keys WHERE NOT revoked AND (? IS NULL OR tenant = ?) ORDER BY rowid",
            (tenant, tenant),
        )
        return tuple(replace(_read(record, KeyRecord), last_used_day=day) for record, day in rows)

    def set_tenant(
        self, name: str, terms: TenantRow, issuer: Principal = LOCAL, witness: Callable[[Tenant], None] = _nobody
    ) -> Tenant:
        """Gives a tenant terms in place of what it had, and returns it.

        Raises:
            InsufficientScopeError: The issuer may not set terms.
        """
        issuer.require(EVERY_TENANT)
        tenant = terms.tenant(name)
        with self._change() as version:
            self._db.execute(
                "INSERT INTO tenants (name, version, terms) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET version = excluded.version, terms = excluded.terms, removed = 0",
                (name, version, msgspec.json.encode(tenant)),
            )
            witness(tenant)
        return tenant

    def remove_tenant(self, name: str, issuer: Principal = LOCAL, witness: Callable[[], None] = lambda: None) -> None:
        """Takes a tenant's terms away.

        Raises:
            InvalidRequestError: There is no such tenant, or it still has keys, which would go on with default terms.
            InsufficientScopeError: The issuer may not set terms.
        """
        issuer.require(EVERY_TENANT)
        with self._change() as version:
            if self._db.execute("SELECT 1 FROM keys WHERE tenant = ? AND NOT revoked", (name,)).fetchone():
                raise InvalidRequestError(f"The tenant {name!r} still has keys; revoke them first.", param="tenant")
            changed = self._db.execute(
                "UPDATE tenants SET removed = 1, version = ? WHERE name = ? AND NOT removed", (version, name)
            )
            if not changed.rowcount:
                raise InvalidRequestError(f"There is no tenant {name!r} with terms of its own.", param="tenant")
            witness()

    def tenants(self) -> tuple[Tenant, ...]:
        rows = self._db.execute("SELECT terms FROM tenants WHERE NOT removed ORDER BY name")
        return tuple(_read(terms, Tenant) for (terms,) in rows)

    async def sync_keys(self, version: int, used: Collection[str], wait_s: float = _NEWS_WAIT_S) -> KeyChanges:
        """Returns what has changed after a version, and notes which keys were used, given their ids.

        The answer waits until there is something, a second at the most, so that a new key is valid everywhere at once.

        Raises:
            sqlite3.Error: The file can't be used.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        self.mark_used(used)
        while True:
            changes = self.changes_since(version)
            if changes.version != version or loop.time() >= until_s:
                return changes
            await asyncio.sleep(_LOOK_PERIOD_S)

    def changes_since(self, version: int) -> KeyChanges:
        """Returns what has changed after a version; everything, if this store can't tell."""
        oldest, newest = self._db.execute("SELECT oldest, newest FROM version").fetchone()
        if version == newest:
            return KeyChanges(newest)
        whole = not oldest <= version <= newest
        since = -1 if whole else version
        keys = self._db.execute("SELECT id, revoked, record FROM keys WHERE version > ?", (since,)).fetchall()
        tenants = self._db.execute("SELECT name, removed, terms FROM tenants WHERE version > ?", (since,)).fetchall()
        return KeyChanges(
            newest,
            whole,
            tuple(_read(record, KeyRecord) for _, revoked, record in keys if not revoked),
            tuple(key_id for key_id, revoked, _ in keys if revoked and not whole),
            tuple(_read(terms, Tenant) for _, removed, terms in tenants if not removed),
            tuple(name for name, removed, _ in tenants if removed and not whole),
        )

    def mark_used(self, key_ids: Collection[str]) -> None:
        """Notes the day on which keys were used; writes only for those that were not used today before."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        self._db.executemany(
            "UPDATE keys SET last_used_day = ? WHERE id = ? AND last_used_day < ?",
            [(day, key_id, day) for key_id in key_ids],
        )

    def _open(self) -> None:
        path = ":memory:"
        if self._folder is not None:
            file = self._folder / FILE_NAME
            path = str(file)
            if is_odd(file):
                raise OSError(errno.EINVAL, "it is not a regular file", path)
            if file.exists() and not file.stat().st_size and (self._folder / _COPY_NAME).exists():
                raise damage("it is empty, and was not")
            file.touch(mode=0o600)
        self._db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._begin()
        except sqlite3.Error:  # it is no database, or locked
            self._db.close()
            raise

    def _mend(self, copy: Path, error: sqlite3.Error) -> None:
        path = copy.with_name(FILE_NAME)
        with closing(sqlite3.connect(copy)) as database:
            check(database)
            _make_tables(database)  # that of another version would not do either
        put_aside(path, error, log)
        shutil.copyfile(copy, path)
        os.chmod(path, 0o600)
        self._open()
        log.error("the store of keys goes on from %s, which has all changes", copy)

    def _keep_copy(self) -> None:
        """Copies the file after a change. A copy without it must not stay: a key that was revoked would come back."""
        if self._folder is None:
            return
        copy, draft = self._folder / _COPY_NAME, self._folder / f"{_COPY_NAME}.draft"
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the command line may write at the same time
            try:
                draft.unlink(missing_ok=True)
                draft.touch(mode=0o600)
                with closing(sqlite3.connect(draft)) as target:
                    self._db.backup(target)
                os.replace(draft, copy)
            except (OSError, sqlite3.Error) as error:
                log.error("the store of keys can't be copied to %s: %s", copy, error)
                with suppress(OSError):
                    copy.unlink(missing_ok=True)
        finally:
            os.close(folder)

    def _begin(self) -> None:
        check(self._db)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a revoked key must not come back with the power
        _make_tables(self._db)
        now = self._now_version()
        self._db.execute("INSERT INTO version SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM version)", (now, now))
        self.changes_since(-1)  # reads every record, which SQLite does not look into

    @contextmanager
    def _change(self) -> Iterator[int]:
        """Yields the version of a change; all of it happens or nothing."""
        with transaction(self._db, "begin immediate"):
            (newest,) = self._db.execute("SELECT newest FROM version").fetchone()
            version = max(newest + 1, self._now_version())
            self._db.execute("UPDATE version SET newest = ?", (version,))
            yield version
        self._keep_copy()

    def _now_version(self) -> int:
        """Returns the time as a version, so that a store which begins again does not repeat versions."""
        return int(self._clock() * 1e6)

    def _check_number(self, tenant: str) -> None:
        (held,) = self._db.execute("SELECT count(*) FROM keys WHERE tenant = ? AND NOT revoked", (tenant,)).fetchone()
        if held >= _MOST_OWN_KEYS:
            message = f"This tenant has {held} keys: revoke some, or ask an operator with the scope `keys` for more."
            raise InvalidRequestError(message, code="over_limit")

    def _key(self, key_id: str, issuer: Principal) -> KeyRecord:
        row = self._db.execute("SELECT record FROM keys WHERE id = ? AND NOT revoked", (key_id,)).fetchone()
        if row is None:
            raise InvalidRequestError(f"There is no key with the id {without_secrets(key_id[:64])!r}.", param="id")
        key = _read(row[0], KeyRecord)
        check_manages(issuer, key.tenant)
        return key


def open_store(folder: Path, *, mends: bool = False) -> KeyStore:
    """Returns the store in a folder; arguments are as of `KeyStore`.

    Raises:
        ConfigError: It can't be used.
    """
    try:
        return KeyStore(folder, mends=mends)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"the store of keys in {folder} can't be used ({error}): make room on its disk, mend it, or put a backup "
            "of its files there. Until then, gateway replicas go by the keys that they know."
        ) from error


def _make_tables(database: sqlite3.Connection) -> None:
    """Makes the tables that are missing.

    Raises:
        sqlite3.Error: One that is there has other columns.
    """
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(_SCHEMA)
        expected = ours.execute(_COLUMNS).fetchall()
    try:
        database.executescript(_SCHEMA)
    except sqlite3.Error as error:
        if database.execute(_COLUMNS).fetchall() != expected:
            raise damage(f"its tables are not those of this version: {error}") from error
        raise
    if database.execute(_COLUMNS).fetchall() != expected:
        raise damage("its tables are not those of this version")


def issue(terms: KeyTerms, now_s: float, shared: tuple[tuple[str, Limits], ...] = ()) -> IssuedKey:
    """Returns a new key with these terms; `shared` is as of `Principal`."""
    key_id = new_id()
    token = new_token(key_id)
    key = terms.record(key_id, (SecretHash(digest(token)),), now_s)
    return IssuedKey(replace(key, shared=shared), token)


def rotated(key: KeyRecord, old_until_s: float) -> IssuedKey:
    """Returns a key with another secret in front of the one it has. The old secret is valid until `old_until_s`, in
    Unix time; the one before it has ended, and is kept so that whoever still sends it is told why it is refused.
    """
    token, (old, *before) = new_token(key.id), key.hashes
    ended = [SecretHash(each.sha256, 0.0) for each in before[:1]]
    return IssuedKey(
        replace(key, hashes=(SecretHash(digest(token)), SecretHash(old.sha256, old_until_s), *ended)), token
    )


def _read(data: bytes, kind: type[Row]) -> Row:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damage(f"a {kind.__name__} can't be read: {error}") from error
