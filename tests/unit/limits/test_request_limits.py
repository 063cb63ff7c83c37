"""Which limits a request meets, and what a refusal says."""

import pytest

from serve.access.principal import NO_LIMITS, Principal, Tenant
from serve.config.access import RIGHTS
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.limits.ledger_messages import LimitId, LimitTerms
from serve.limits.request_limits import over_limit, request_limits
from serve.limits.slice import RateSlice


def queued(tenant: Limits = NO_LIMITS, model: Limits = NO_LIMITS, key: Limits = NO_LIMITS) -> int | None:
    principal = Principal("k", Tenant("red", 1.0, tenant, {"m": model}), RIGHTS, limits=key)
    config = RateLimitsConfig(default=Limits(queued=50))
    return request_limits(
        principal, "m", config, lambda id, terms, shadow: pytest.fail(f"no limit of {id} {terms}"), {}
    ).queued


def test_as_many_requests_may_wait_as_the_smallest_limit_of_the_tenant_allows() -> None:
    assert queued() == 50
    assert queued(Limits(queued=90)) == 90
    assert queued(Limits(queued=90), Limits(queued=7)) == 7
    assert queued(Limits(queued=90), Limits(queued=7, shadow=True)) == 90
    assert queued(Limits(shadow=True)) is None


def test_a_key_does_not_limit_how_many_requests_of_its_tenant_wait() -> None:
    assert queued(key=Limits(queued=1)) == 50


@pytest.mark.parametrize(
    ("given", "met"),
    [({"alias": 60}, 60), ({"m": 30, "alias": 60}, 30), ({"alias": 60, "m": 30}, 30), ({"n": 60}, None)],
)
def test_a_limit_of_an_alias_is_the_models(given: dict[str, int], met: int | None) -> None:
    """It was nobody's: whoever set it had no limit, and no word of it."""
    limits = {name: Limits(requests_per_minute=rate) for name, rate in given.items()}
    principal = Principal("k", Tenant("red", model_limits=limits), RIGHTS)
    names = {"m": "m", "alias": "m", "n": "n"}
    config = RateLimitsConfig(output_cap=100, output_caps={"alias": 7})
    found = request_limits(principal, "m", config, lambda id, terms, shadow: RateSlice(id, terms, 1, 0.0), names)
    assert [round(held.terms.rate_per_s * 60) for held in found.slices] == ([] if met is None else [met])
    assert {held.id.scope for held in found.slices} <= {"model:red:m"}
    assert found.output_cap == 7


@pytest.mark.parametrize(("wait_s", "after"), [(0.0, "1"), (0.4, "1"), (14.2, "15"), (600.0, "600")])
def test_a_refusal_says_when_to_come_again_and_never_too_early(wait_s: float, after: str) -> None:
    held = RateSlice(LimitId("key:k", "requests"), LimitTerms(0.1, 3.0), 1, 0.0)
    error = over_limit(held, wait_s, 1.0)
    assert error.headers["retry-after"] == after
    assert f"6 requests a minute for the key 'k' is reached; try again in {after} s" in error.message


def test_a_refusal_says_how_many_requests_begin_at_once_since_they_are_fewer_than_the_limit_says() -> None:
    held = RateSlice(LimitId("tenant:t", "requests"), LimitTerms(5 / 60, 2.5), 1, 0.0)
    assert "5 requests a minute for the tenant 't'" in over_limit(held, 9.0, 1.0).message
    assert over_limit(held, 9.0, 1.0).message.endswith("It lets 2 begin at once, then one every 12 s.")
