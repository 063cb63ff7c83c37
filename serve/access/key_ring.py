"""The keys that one process knows: a token's principal in a microsecond, without I/O."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest

from serve.access.key_record import KeyChanges, KeyRecord, SecretHash
from serve.access.key_text import claimed_id, digest, token_in
from serve.access.principal import EVERY_MODEL, Principal, Tenant
from serve.config.access import PRIORITIES, RequestPriority
from serve.errors import GatewayError, InvalidApiKeyError, SharedStateError
from serve.telemetry.metrics import Metrics

log = logging.getLogger("ray.serve.specgate.access")

_RETRY_AFTER_S = 2.0
_MOST_ENDED = 10_000
_MISSING = "No API key was given: send one as `Authorization: Bearer KEY` or in `x-api-key`."
_UNKNOWN = "This API key is not valid here: it is mistyped, or it was revoked."
_EXPIRED = "This API key is no longer valid: it has expired, or another secret has taken its place."
_UNHEARD = "This replica has not reached the store of keys yet, or not for too long; try again shortly."
_SOON_S = 14 * 86_400.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key as it is looked up.

    Attributes:
        is_stored: True if it comes from the store, so that it counts only while the store answers.
    """

    hashes: tuple[SecretHash, ...]
    principal: Principal
    is_stored: bool

    def secret(self, token: str) -> SecretHash | None:
        """Returns which of the key's secrets a token has; None for none."""
        given = digest(token)
        for known in self.hashes:
            if compare_digest(known.sha256, given):
                return known
        return None


class KeyRing:
    """Keys and tenants of both sources, the declarative file and the store, by id.

    Args:
        stale_max_s: How long keys of the store are believed without news of it; None if there is no store.
        fallback: Returns the principal of a token that is no key of ours, or raises `InvalidApiKeyError`.
        clock: Unix time in seconds, which says when a key ends.
        steady: Seconds that never jump, which say how long the store has been silent.

    Attributes:
        version: The store's version that is known here; 0 before the first.
    """

    def __init__(
        self,
        stale_max_s: float | None = None,
        fallback: Callable[[str], Principal] | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = 0
        self._stale_max_s = stale_max_s
        self._fallback = fallback
        self._clock = clock
        self._steady = steady
        self._heard_s = float("-inf")
        self._declared: dict[str, KeyRecord] = {}
        self._stored: dict[str, KeyRecord] = {}
        self._declared_tenants: dict[str, Tenant] = {}
        self._stored_tenants: dict[str, Tenant] = {}
        self._entries: dict[str, _Entry] = {}
        self._ended: dict[str, _Entry] = {}  # of keys that were revoked since this process has known them, for the log
        self._used: set[str] = set()

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Returns the principal of a request. Headers are by lower-case name.

        Raises:
            InvalidApiKeyError: The request has no key, or none that is valid now. The error names the key if it once
                was valid here, and its secret right: whoever knows an id alone speaks for nobody.
            SharedStateError: The store has not answered yet, so nobody knows.
        """
        token = token_in(headers)
        if not token:
            raise InvalidApiKeyError(_MISSING)
        entry = self._entries.get(claimed_id(token))
        if entry is None:
            return self._other(token)
        secret = entry.secret(token)
        if secret is None:
            raise InvalidApiKeyError(_UNKNOWN)
        principal, now_s = entry.principal, self._clock()
        for ends_s in (secret.until_s, principal.expires_s):
            if ends_s is not None and ends_s <= now_s:
                raise _named(InvalidApiKeyError(_EXPIRED), principal)
        if entry.is_stored and not self._is_fresh():
            raise _named(_unheard(), principal)
        self._used.add(principal.key_id)
        return principal

    def adopt(self, changes: KeyChanges) -> None:
        """Takes over news of the store; news without a change still say that the store lives."""
        self._heard_s = self._steady()
        self.version = changes.version
        touched = {key.id for key in changes.keys} | set(changes.removed_keys)
        terms = {tenant.name for tenant in changes.tenants} | set(changes.removed_tenants)
        if changes.whole:
            touched |= self._stored.keys()
            terms |= self._stored_tenants.keys()
            self._stored.clear()
            self._stored_tenants.clear()
        for name in changes.removed_tenants:
            self._stored_tenants.pop(name, None)
        for key_id in changes.removed_keys:
            self._stored.pop(key_id, None)
        self._stored_tenants |= {tenant.name: tenant for tenant in changes.tenants}
        self._stored |= {key.id: key for key in changes.keys}
        self._index(touched, terms)

    def declare(self, tenants: Iterable[Tenant], keys: Iterable[KeyRecord]) -> None:
        """Takes over all that the declarative file holds, in place of what it held before."""
        before = self._declared.keys() | self._declared_tenants.keys()
        old_terms = set(self._declared_tenants)
        self._declared_tenants = {tenant.name: tenant for tenant in tenants}
        self._declared = {key.id: key for key in keys}
        self._index(before | self._declared.keys(), old_terms | self._declared_tenants.keys())

    def tenant(self, name: str) -> Tenant:
        """Returns a tenant's terms: those of the file before those of the store, and else the default ones."""
        return self._declared_tenants.get(name) or self._stored_tenants.get(name) or Tenant(name)

    def take_used(self) -> frozenset[str]:
        """Returns the ids of the keys that were used since the last call."""
        used, self._used = frozenset(self._used), set()
        return used

    def ending(self, within_s: float) -> Mapping[str, int]:
        """Returns how many keys of the `file` and the `store` are valid now and end within some seconds."""
        now_s = self._clock()
        ending = {"file": 0, "store": 0}
        for entry in tuple(self._entries.values()):  # collected in another thread than changed
            end_s = entry.principal.expires_s
            if end_s is not None and now_s < end_s <= now_s + within_s:
                ending["store" if entry.is_stored else "file"] += 1
        return ending

    def _other(self, token: str) -> Principal:
        if self._fallback is not None and not claimed_id(token):
            return self._fallback(token)
        if claimed_id(token) and not self._is_fresh():
            raise _unheard()
        ended = self._ended.get(claimed_id(token))
        if ended is not None and ended.secret(token) is not None:
            raise _named(InvalidApiKeyError(_UNKNOWN), ended.principal)
        raise InvalidApiKeyError(_UNKNOWN)

    def _is_fresh(self) -> bool:
        return self._stale_max_s is None or self._steady() - self._heard_s <= self._stale_max_s

    def _index(self, touched: Iterable[str], tenants: Iterable[str]) -> None:
        """Makes new entries of some keys, and of all keys of some tenants."""
        changed = frozenset(tenants)
        keys = {**self._stored, **self._declared}.values() if changed else ()
        for key_id in {*touched, *(key.id for key in keys if key.tenant in changed)}:
            entry = self._entry(key_id)
            if entry is not None:
                self._entries[key_id] = entry
                self._ended.pop(key_id, None)
            elif (ended := self._entries.pop(key_id, None)) is not None:
                self._ended[key_id] = ended
                if len(self._ended) > _MOST_ENDED:
                    del self._ended[next(iter(self._ended))]

    def _entry(self, key_id: str) -> _Entry | None:
        declared, stored = self._declared.get(key_id), self._stored.get(key_id)
        if declared is not None and stored is not None:
            log.error("the key %s is in the access file and in the store; it is not accepted until one is gone", key_id)
            return None
        key = declared or stored
        if key is None:
            return None
        return _Entry(key.hashes, _principal(key, self.tenant(key.tenant)), declared is None)


def _principal(key: KeyRecord, tenant: Tenant) -> Principal:
    ceiling = _later(key.priority_ceiling, tenant.priority_ceiling)
    return Principal(
        key_id=key.id,
        tenant=tenant,
        scopes=key.scopes,
        models=EVERY_MODEL if "*" in key.models else key.models,
        limits=key.limits,
        priority_default=_later(key.priority_default, ceiling),
        priority_ceiling=ceiling,
        expires_s=key.expires_s,
        shared=key.shared,
    )


def _later(one: RequestPriority, other: RequestPriority) -> RequestPriority:
    return max(one, other, key=PRIORITIES.index)


def _unheard() -> GatewayError:
    return SharedStateError(_UNHEARD, retry_after_s=_RETRY_AFTER_S)


def _named(error: GatewayError, principal: Principal) -> GatewayError:
    """Returns an error that names a key which is refused."""
    error.key_id, error.tenant = principal.key_id, principal.tenant.name
    return error


def show_keys(metrics: Metrics, ring: KeyRing) -> None:
    """Shows the keys that will end soon as a metric: somebody has to make new ones before agents stop."""
    metrics.read(
        "gauge", "specgate_keys_ending", "Keys that end within 14 days", ["source"],
        lambda: (((source,), count) for source, count in ring.ending(_SOON_S).items()),
    )  # fmt: skip
