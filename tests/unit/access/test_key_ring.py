"""Authentication as one process does it: from memory, and refusing is the default."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.clock import ManualClock

from serve.access.key_record import KeyChanges, KeyRecord, SecretHash
from serve.access.key_ring import KeyRing
from serve.access.key_text import digest, new_id, new_token
from serve.access.principal import ANONYMOUS, Principal, Tenant, everybody
from serve.config.access import RIGHTS
from serve.errors import InvalidApiKeyError, SharedStateError


def bearer(token: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {token}"}


def made(tenant: str = "red") -> tuple[str, KeyRecord]:
    key_id = new_id()
    token = new_token(key_id)
    return token, KeyRecord(key_id, tenant, "ci", (SecretHash(digest(token)),))


def test_without_access_control_everybody_may_do_everything() -> None:
    assert everybody({}) is ANONYMOUS
    assert ANONYMOUS.scopes == RIGHTS
    assert ANONYMOUS.may_use("any/model")


def test_a_key_stands_for_its_tenant_and_its_scopes() -> None:
    ring = KeyRing()
    token, key = made()
    key = replace(key, scopes=frozenset({"infer", "explain"}), models=("tiny-*",))
    ring.declare([Tenant("red", weight=2.0)], [key])
    principal = ring.authenticate(bearer(token))
    assert (principal.key_id, principal.tenant.weight) == (key.id, 2.0)
    assert principal.scopes == {"infer", "explain"}
    assert principal.may_use("tiny-kimi")
    assert not principal.may_use("big")


def test_a_tenant_that_nobody_has_described_has_the_default_terms() -> None:
    ring = KeyRing()
    token, key = made("new")
    ring.declare([], [key])
    assert ring.authenticate(bearer(token)).tenant == Tenant("new")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer "}, {"x-api-key": ""}, bearer("sgk_"), bearer("é")])
def test_whatever_is_no_known_key_is_refused(headers: Mapping[str, str]) -> None:
    ring = KeyRing()
    ring.declare([], [made()[1]])
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(headers)


def test_a_right_id_with_another_secret_is_refused() -> None:
    ring = KeyRing()
    _, key = made()
    ring.declare([], [key])
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(bearer(new_token(key.id)))


def test_a_key_ends_when_it_expires() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(clock=clock)
    token, key = made()
    ring.declare([], [replace(key, expires_s=1010.0)])
    ring.authenticate(bearer(token))
    clock.now_s = 1010.0
    with pytest.raises(InvalidApiKeyError, match="expired"):
        ring.authenticate(bearer(token))


def test_while_a_key_is_rotated_both_secrets_hold_until_the_old_ones_end() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(clock=clock)
    old, key = made()
    new = new_token(key.id)
    ring.declare([], [replace(key, hashes=(SecretHash(digest(new)), SecretHash(digest(old), 1010.0)))])
    assert ring.authenticate(bearer(old)) == ring.authenticate(bearer(new))
    clock.now_s = 1010.0
    ring.authenticate(bearer(new))
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(bearer(old))


def test_a_revoked_key_is_unknown_after_the_next_news() -> None:
    ring = KeyRing(stale_max_s=60)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,)))
    ring.authenticate(bearer(token))
    ring.adopt(KeyChanges(2, removed_keys=(key.id,)))
    assert ring.version == 2
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(bearer(token))


def refused(ring: KeyRing, token: str) -> tuple[str, str]:
    """Returns the key and the tenant that the refusal of a token names."""
    with pytest.raises((InvalidApiKeyError, SharedStateError)) as refusal:
        ring.authenticate(bearer(token))
    return refusal.value.key_id, refusal.value.tenant


def test_a_key_that_is_no_longer_valid_is_named_by_its_refusal() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(clock=clock)
    (expired, expired_key), (removed, removed_key), (rotated, rotated_key) = made(), made("blue"), made("green")
    new = SecretHash(digest(new_token(rotated_key.id)))
    replaced = replace(rotated_key, hashes=(new, SecretHash(digest(rotated), clock.now_s)))
    ring.declare([], [replace(expired_key, expires_s=clock.now_s), removed_key, replaced])
    ring.declare([], [replace(expired_key, expires_s=clock.now_s), replaced])
    assert refused(ring, expired) == (expired_key.id, "red")
    assert refused(ring, removed) == (removed_key.id, "blue")
    assert refused(ring, rotated) == (rotated_key.id, "green")


def test_a_revoked_key_is_named_even_after_the_store_was_read_anew() -> None:
    ring = KeyRing(stale_max_s=60)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,)))
    ring.adopt(KeyChanges(2, removed_keys=(key.id,)))
    ring.adopt(KeyChanges(3, whole=True))
    assert refused(ring, token) == (key.id, "red")


def test_a_key_that_the_store_can_not_vouch_for_now_is_named_too() -> None:
    steady = ManualClock(1000.0)
    ring = KeyRing(stale_max_s=60, steady=steady)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,)))
    steady.now_s += 61
    assert refused(ring, token) == (key.id, "red")


def test_whoever_knows_the_id_of_a_key_alone_is_not_taken_for_its_tenant() -> None:
    ring = KeyRing()
    (_, key), (_, gone) = made(), made()
    ring.declare([], [key, gone])
    ring.declare([], [key])
    for token in (new_token(key.id), new_token(gone.id), new_token(new_id()), "é"):
        assert refused(ring, token) == ("", "")


def test_a_whole_snapshot_forgets_what_is_not_in_it() -> None:
    ring = KeyRing(stale_max_s=60)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,), tenants=(Tenant("red", 3.0),)))
    other, other_key = made()
    ring.adopt(KeyChanges(9, whole=True, keys=(other_key,)))
    assert ring.authenticate(bearer(other)).tenant == Tenant("red")
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(bearer(token))


def test_new_terms_of_a_tenant_hold_for_keys_that_did_not_change() -> None:
    ring = KeyRing(stale_max_s=60)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,), tenants=(Tenant("red", 1.0),)))
    ring.adopt(KeyChanges(2, tenants=(Tenant("red", 5.0),)))
    assert ring.authenticate(bearer(token)).tenant.weight == 5.0
    ring.adopt(KeyChanges(3, removed_tenants=("red",)))
    assert ring.authenticate(bearer(token)).tenant == Tenant("red")


def test_an_id_in_both_sources_authenticates_nobody_until_one_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing(stale_max_s=60)
    token, key = made()
    ring.declare([], [key])
    ring.adopt(KeyChanges(1, whole=True, keys=(key,)))
    with pytest.raises(InvalidApiKeyError):
        ring.authenticate(bearer(token))
    assert key.id in caplog.text
    ring.declare([], [])
    ring.authenticate(bearer(token))


def test_before_the_first_news_of_the_store_nobody_can_say_that_a_key_is_wrong() -> None:
    ring = KeyRing(stale_max_s=60, clock=ManualClock(1000.0))
    token, _ = made()
    with pytest.raises(SharedStateError):
        ring.authenticate(bearer(token))


def test_stored_keys_go_on_without_the_store_for_a_while_and_those_of_the_file_for_ever() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(stale_max_s=60, steady=clock)
    stored, stored_key = made()
    declared, declared_key = made()
    ring.declare([], [declared_key])
    ring.adopt(KeyChanges(1, whole=True, keys=(stored_key,)))
    clock.now_s += 60
    ring.authenticate(bearer(stored))
    clock.now_s += 1
    ring.authenticate(bearer(declared))
    with pytest.raises(SharedStateError):
        ring.authenticate(bearer(stored))
    ring.adopt(KeyChanges(1))
    ring.authenticate(bearer(stored))


def test_a_key_never_comes_before_its_tenant_in_the_queue() -> None:
    ring = KeyRing()
    token, key = made()
    ring.declare([Tenant("red", priority_ceiling="batch")], [replace(key, priority_default="interactive")])
    principal = ring.authenticate(bearer(token))
    assert (principal.priority_default, principal.priority_ceiling) == ("batch", "batch")


def test_a_token_of_another_form_goes_to_who_knows_those() -> None:
    def person(token: str) -> Principal:
        return Principal(token, Tenant("red"), frozenset())

    assert KeyRing(fallback=person).authenticate(bearer("a.b.c")).key_id == "a.b.c"
    with pytest.raises(InvalidApiKeyError):
        KeyRing(fallback=person).authenticate(bearer(new_token(new_id())))


def test_used_keys_are_told_once() -> None:
    ring = KeyRing()
    token, key = made()
    ring.declare([], [key])
    ring.authenticate(bearer(token))
    assert ring.take_used() == {key.id}
    assert ring.take_used() == frozenset()


def test_keys_that_end_soon_are_counted_and_those_that_ended_or_stay_are_not() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(clock=clock)
    ends = (None, clock.now_s, clock.now_s + 1, clock.now_s + 10, clock.now_s + 11)
    ring.declare([], [replace(made()[1], expires_s=end_s) for end_s in ends])
    ring.adopt(KeyChanges(1, keys=(replace(made()[1], expires_s=clock.now_s + 2),)))
    assert ring.ending(10.0) == {"file": 2, "store": 1}
    clock.now_s += 1
    assert ring.ending(10.0) == {"file": 2, "store": 1}
    ring.declare([], [])
    assert ring.ending(10.0) == {"file": 0, "store": 1}


def test_a_wall_clock_that_jumps_makes_no_store_silent() -> None:
    clock = ManualClock(1000.0)
    ring = KeyRing(stale_max_s=60, clock=clock)
    token, key = made()
    ring.adopt(KeyChanges(1, whole=True, keys=(key,)))
    for jump_s in (86_400, -200_000):
        clock.now_s += jump_s
        ring.authenticate(bearer(token))
