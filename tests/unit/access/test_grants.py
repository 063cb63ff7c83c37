"""Monotone rights: no key hands out what it does not hold."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.access.grants import LOCAL, check_grant, check_manages, check_shares, shared_by
from serve.access.key_record import KeyRecord
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits
from serve.errors import InsufficientScopeError

OWN = Principal("k", Tenant("red"), frozenset({"infer", "explain", "keys:own"}))
CHILD = KeyRecord("abcdefghij", "red", "ci", (), frozenset({"infer"}))


def test_whoever_can_write_the_file_may_hand_out_everything() -> None:
    check_grant(LOCAL, replace(CHILD, tenant="blue", scopes=LOCAL.scopes))


def test_a_tenants_own_admin_makes_keys_of_its_tenant_like_its_own() -> None:
    check_grant(OWN, CHILD)
    check_grant(OWN, replace(CHILD, scopes=OWN.scopes))


@pytest.mark.parametrize(
    ("issuer", "child"),
    [
        ({}, {"tenant": "blue"}),
        ({}, {"scopes": frozenset({"operate"})}),
        ({}, {"scopes": frozenset({"infer", "keys"})}),
        ({"scopes": frozenset({"infer", "operate"})}, {}),
        ({"scopes": frozenset()}, {}),
        ({"models": ("tiny-*",)}, {}),
        ({"models": ("tiny-*",)}, {"models": ("tiny-kimi", "big")}),
        ({"models": ("tiny-kimi",)}, {"models": ("tiny-*",)}),
        ({"limits": Limits(requests_per_minute=10)}, {}),
        ({"limits": Limits(requests_per_minute=10)}, {"limits": Limits(requests_per_minute=11)}),
        (
            {"limits": Limits(requests_per_minute=10)},
            {"limits": Limits(requests_per_minute=5, shadow=True)},
        ),
        ({"priority_ceiling": "batch"}, {"priority_ceiling": "standard"}),
    ],
)
def test_more_than_the_issuer_holds_is_refused(issuer: dict[str, Any], child: dict[str, Any]) -> None:
    with pytest.raises(InsufficientScopeError):
        check_grant(replace(OWN, **issuer), replace(CHILD, **child))


def test_as_much_as_the_issuer_holds_is_granted() -> None:
    issuer = replace(OWN, models=("tiny-*", "big"), limits=Limits(requests_per_minute=10), priority_ceiling="standard")
    child = replace(
        CHILD, models=("tiny-k*", "big"), limits=Limits(requests_per_minute=10), priority_ceiling="standard"
    )
    check_grant(issuer, child)


def test_another_tenants_keys_are_not_its_business() -> None:
    check_manages(OWN, "red")
    with pytest.raises(InsufficientScopeError):
        check_manages(OWN, "blue")


PATTERNS = st.text("ab*", min_size=1, max_size=6)


@given(PATTERNS, PATTERNS, st.text("ab", max_size=8))
def test_a_pattern_that_may_be_handed_out_matches_nothing_beyond_the_issuers(held: str, given: str, name: str) -> None:
    issuer, child = replace(OWN, models=(held,)), replace(CHILD, models=(given,))
    try:
        check_grant(issuer, child)
    except InsufficientScopeError:
        return
    if fnmatchcase(name, given):
        assert issuer.may_use(name)


@pytest.mark.parametrize("scopes", [OWN.scopes, OWN.scopes | {"keys"}])
@pytest.mark.parametrize("ends_s", [None, 101.0, 1e12])
def test_no_key_outlives_who_handed_it_out(scopes: frozenset[str], ends_s: float | None) -> None:
    issuer = replace(OWN, scopes=scopes, expires_s=100.0)
    with pytest.raises(InsufficientScopeError, match="1970-01-01T00:01:40"):
        check_grant(issuer, replace(CHILD, expires_s=ends_s))
    check_grant(issuer, replace(CHILD, expires_s=100.0))
    check_grant(replace(issuer, expires_s=None), replace(CHILD, expires_s=ends_s))


def test_a_token_that_ends_at_an_odd_time_is_answered_all_the_same() -> None:
    with pytest.raises(InsufficientScopeError):
        check_grant(replace(OWN, expires_s=1e300), CHILD)


def test_keys_of_a_key_with_limits_spend_of_its_allowance() -> None:
    limits = Limits(requests_per_minute=10)
    issuer = replace(OWN, limits=limits, shared=(("grandparent", Limits(concurrency=1)),))
    assert shared_by(issuer) == (("k", limits), ("grandparent", Limits(concurrency=1)))
    assert shared_by(OWN) == ()
    assert shared_by(replace(issuer, scopes=OWN.scopes | {"keys"})) == ()


def test_a_key_with_limits_rotates_no_key_that_does_not_share_them() -> None:
    limits = Limits(requests_per_minute=10)
    issuer = replace(OWN, limits=limits)
    child = replace(CHILD, limits=Limits(requests_per_minute=5))
    with pytest.raises(InsufficientScopeError, match="shares them"):
        check_shares(issuer, child)
    check_shares(issuer, replace(child, shared=(("k", limits),)))
    check_shares(issuer, replace(child, id="k"))


@given(
    st.frozensets(st.sampled_from(sorted(OWN.scopes | {"operate"}))),
    st.none() | st.floats(0, 200),
    st.none() | st.integers(1, 20),
)
def test_what_a_key_may_end_it_could_have_handed_out(
    scopes: frozenset[str], ends_s: float | None, requests: int | None
) -> None:
    issuer = replace(OWN, limits=Limits(requests_per_minute=10), expires_s=100.0)
    key = replace(CHILD, scopes=scopes, expires_s=ends_s, limits=Limits(requests_per_minute=requests))
    holds = scopes <= OWN.scopes and ends_s is not None and ends_s <= 100.0 and requests is not None and requests <= 10
    if holds:
        check_grant(issuer, key)
    else:
        with pytest.raises(InsufficientScopeError):
            check_grant(issuer, key)
