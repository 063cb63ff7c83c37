"""Keys and tenants as they are stored, as they are listed, and what has changed among them.

What the command line and the admin API list is JSON, and nothing in it is a secret but a new token.
"""

from dataclasses import dataclass
from typing import Any

from serve.access.principal import EVERY_MODEL, NO_LIMITS, Tenant, utc_text
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


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and its token, which is shown once and stored nowhere."""

    key: KeyRecord
    token: str

    def __repr__(self) -> str:
        """Names the key only, so that no log gets the token."""
        return f"IssuedKey({self.key.id})"


def key_object(key: KeyRecord) -> dict[str, Any]:
    """Returns a key, without its hashes."""
    ends = [old.until_s for old in key.hashes if old.until_s is not None]
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "models": list(key.models),
        "limits": key.limits.stated(),
        "priority_default": key.priority_default,
        "priority_ceiling": key.priority_ceiling,
        "created": _time(key.created_s),
        "expires": _time(key.expires_s),
        "shares_limits_of": [key_id for key_id, _ in key.shared],
        "last_used": key.last_used_day or None,
        "old_secret_until": _time(max(ends, default=None)),
    }


def issued_object(issued: IssuedKey) -> dict[str, Any]:
    """Returns a key with its token, which nobody can show again."""
    return {**key_object(issued.key), "token": issued.token}


def tenant_object(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "limits": tenant.limits.stated(),
        "model_limits": {model: limits.stated() for model, limits in tenant.model_limits.items()},
        "priority_ceiling": tenant.priority_ceiling,
    }


def _time(time_s: float | None) -> str | None:
    return None if time_s is None else utc_text(time_s)
