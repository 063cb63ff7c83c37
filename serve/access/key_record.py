"""Keys as they are stored, and what has changed among them."""

from dataclasses import dataclass

from serve.access.principal import EVERY_MODEL
from serve.access.tenants import NO_LIMITS, Tenant
from serve.config.access import RequestPriority
from serve.config.rate_limits import Limits


@dataclass(frozen=True, slots=True)
class SecretHash:
    """One secret of a key; a key that is being rotated has two.

    Attributes:
        sha256: Of the whole token, 32 bytes.
        until_s: End of its validity in Unix time; None for as long as the key is valid.
    """

    sha256: bytes
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key.

    Attributes:
        id: Public part of the token.
        hashes: Of its secrets, the newest first.
        scopes: As of `Principal`, and all that follows.
        created_s: In Unix time, as `expires_s`; None for never.
        last_used_day: As `2026-11-22`, in UTC; empty if it was not used.
        shared: As of `Principal`.
    """

    id: str
    tenant: str
    name: str
    hashes: tuple[SecretHash, ...]
    scopes: frozenset[str] = frozenset({"infer"})
    models: tuple[str, ...] = EVERY_MODEL
    limits: Limits = NO_LIMITS
    priority_default: RequestPriority = "standard"
    priority_ceiling: RequestPriority = "interactive"
    created_s: float = 0.0
    expires_s: float | None = None
    last_used_day: str = ""
    shared: tuple[tuple[str, Limits], ...] = ()


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The changes of a store after one version, up to another.

    Attributes:
        version: The store's version with these changes. Versions of one store never go down, even if it loses its file.
        whole: True if this is all that the store holds, and whatever else a replica knows of it is to be forgotten.
        removed_tenants: Names of tenants whose terms are the default ones again.
    """

    version: int
    whole: bool = False
    keys: tuple[KeyRecord, ...] = ()
    removed_keys: tuple[str, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    removed_tenants: tuple[str, ...] = ()
