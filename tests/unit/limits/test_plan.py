"""Which limits a request meets."""

import pytest

from serve.access.principal import Principal
from serve.access.tenants import NO_LIMITS, Tenant
from serve.config.access import RIGHTS
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.limits.plan import plan_of


def queued(tenant: Limits = NO_LIMITS, model: Limits = NO_LIMITS, key: Limits = NO_LIMITS) -> int | None:
    principal = Principal("k", Tenant("red", 1.0, tenant, {"m": model}), RIGHTS, limits=key)
    config = RateLimitsConfig(default=Limits(queued=50))
    return plan_of(principal, "m", config, lambda meter, terms: pytest.fail(f"no limit of {meter} {terms}")).queued


def test_as_many_requests_may_wait_as_the_smallest_limit_of_the_tenant_allows() -> None:
    assert queued() == 50
    assert queued(Limits(queued=90)) == 90
    assert queued(Limits(queued=90), Limits(queued=7)) == 7
    assert queued(Limits(queued=90), Limits(queued=7, shadow=True)) == 90
    assert queued(Limits(shadow=True)) is None


def test_a_key_does_not_limit_how_many_requests_of_its_tenant_wait() -> None:
    assert queued(key=Limits(queued=1)) == 50
