"""Keys and tenants as JSON, for the command line and the admin API alike; nothing in it is a secret."""

from typing import Any

from serve.access.key_record import KeyRecord
from serve.access.key_store import IssuedKey
from serve.access.principal import utc_text
from serve.access.tenants import Tenant


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
