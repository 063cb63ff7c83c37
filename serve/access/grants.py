"""Rights of one key over others: nobody hands out more than they hold, for longer than they hold it."""

from dataclasses import fields
from fnmatch import fnmatchcase

from serve.access.key_record import KeyRecord
from serve.access.principal import DEFAULT_TENANT, NO_LIMITS, Principal, Tenant, utc_text
from serve.config.access import PRIORITIES, RIGHTS
from serve.config.rate_limits import Limits
from serve.errors import InsufficientScopeError

# Whoever can write the store's file, which no request can.
LOCAL = Principal("local", Tenant(DEFAULT_TENANT), RIGHTS)

EVERY_TENANT = "keys"
_OWN_TENANT = "keys:own"


def check_manages(issuer: Principal, tenant: str) -> None:
    """Returns if a principal may see and end the keys of a tenant.

    Raises:
        InsufficientScopeError: It may not.
    """
    if EVERY_TENANT in issuer.scopes:
        return
    if _OWN_TENANT in issuer.scopes and issuer.tenant.name == tenant:
        return
    raise InsufficientScopeError(f"This key can't manage keys of the tenant {tenant!r}: that needs the scope `keys`.")


def shared_by(issuer: Principal) -> tuple[tuple[str, Limits], ...]:
    """Returns the limits that keys share which a principal makes: its own, and those that it shares itself.

    Otherwise it would have as many allowances as it makes keys. Whoever manages every tenant sets their limits anyway.
    """
    if EVERY_TENANT in issuer.scopes:
        return ()
    own = () if issuer.limits == NO_LIMITS else ((issuer.key_id, issuer.limits),)
    return (*own, *issuer.shared)


def check_shares(issuer: Principal, key: KeyRecord) -> None:
    """Returns if a principal that gets hold of a key has no further allowance by it.

    Raises:
        InsufficientScopeError: It would have one.
    """
    spent_of = {key.id, *(key_id for key_id, _ in key.shared)}
    if any(key_id not in spent_of for key_id, _ in shared_by(issuer)):
        raise InsufficientScopeError("A key with limits can rotate only what shares them: itself, and keys it made.")


def check_grant(issuer: Principal, key: KeyRecord) -> None:
    """Returns if a principal may hand out a key, or end it.

    Raises:
        InsufficientScopeError: The key could do what the principal can't, or for longer; the message says what.
    """
    check_manages(issuer, key.tenant)
    more = [
        *(f"the scope {scope!r}" for scope in sorted(key.scopes - issuer.scopes)),
        *(f"the models {pattern!r}" for pattern in key.models if not _holds(issuer.models, pattern)),
        *(f"a larger {name}" for name in _larger(issuer.limits, key.limits)),
    ]
    if PRIORITIES.index(key.priority_ceiling) < PRIORITIES.index(issuer.priority_ceiling):
        more.append(f"the priority {key.priority_ceiling!r}")
    if issuer.expires_s is not None and (key.expires_s is None or key.expires_s > issuer.expires_s):
        more.append(f"a life beyond its own `expires`, {utc_text(issuer.expires_s)}")
    if more:
        raise InsufficientScopeError(f"A key can't hand out or end what it does not hold: {', '.join(more)}.")


def _holds(patterns: tuple[str, ...], pattern: str) -> bool:
    """Returns True if one of some patterns matches all that another one matches.

    `*` is their only wildcard, and none of them has it as a plain character: what matches the text of the other
    pattern, star and all, matches whatever may stand in the star's place.
    """
    return any(fnmatchcase(pattern, held) for held in patterns)


def _larger(held: Limits, given: Limits) -> list[str]:
    """Returns the names of limits that are set for the issuer, and higher or missing in what it gives."""
    names = [field.name for field in fields(Limits) if field.name != "shadow"]
    pairs = {name: (getattr(held, name), getattr(given, name)) for name in names}
    larger = [name for name, (most, asked) in pairs.items() if most is not None and (asked is None or asked > most)]
    is_enforced = held != NO_LIMITS and not held.shadow
    return [*larger, "shadow"] if given.shadow and is_enforced else larger
