"""Monotone rights: no key hands out what it does not hold."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.access.key_record import KeyRecord
from serve.access.principal import Principal
from serve.access.rights import LOCAL, check_grant, check_manages, check_manages_tenants
from serve.access.tenants import Tenant
from serve.config.rate_limits import Limits
from serve.errors import InsufficientScopeError

OWN = Principal("k", Tenant("red"), frozenset({"infer", "explain", "keys:own"}))
CHILD = KeyRecord("abcdefghij", "red", "ci", (), frozenset({"infer"}))


def test_whoever_can_write_the_file_may_hand_out_everything() -> None:
    check_grant(LOCAL, replace(CHILD, tenant="blue", scopes=LOCAL.scopes))
    check_manages_tenants(LOCAL)


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
    with pytest.raises(InsufficientScopeError):
        check_manages_tenants(OWN)


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
