"""Which limits a request meets."""

import pytest

from serve.access.principal import Principal
from serve.access.tenants import NO_LIMITS, Tenant
from serve.config.access import RIGHTS
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.limits.plan import plan_of
from serve.limits.slice import RateSlice


def queued(tenant: Limits = NO_LIMITS, model: Limits = NO_LIMITS, key: Limits = NO_LIMITS) -> int | None:
    principal = Principal("k", Tenant("red", 1.0, tenant, {"m": model}), RIGHTS, limits=key)
    config = RateLimitsConfig(default=Limits(queued=50))
    return plan_of(principal, "m", config, lambda meter, terms: pytest.fail(f"no limit of {meter} {terms}"), {}).queued


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
    plan = plan_of(principal, "m", config, lambda meter, terms: RateSlice(meter, terms, 1, 0.0), names)
    assert [round(line.held.terms.rate_per_s * 60) for line in plan.lines] == ([] if met is None else [met])
    assert {line.held.meter.scope for line in plan.lines} <= {"model:red:m"}
    assert plan.output_cap == 7
