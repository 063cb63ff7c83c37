"""The limits that a principal's requests to a model meet, as slices to spend from, and refusals by them."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from serve.access.principal import Principal
from serve.access.tenants import NO_LIMITS, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, TokenWeights
from serve.errors import QuotaError, RateLimitError
from serve.limits.headers import LimitHeaders, limit_headers
from serve.limits.messages import Kind, Meter, Terms
from serve.limits.slice import Line, RateSlice, Slice

_MINUTE_S = 60.0
_NAMES: dict[Kind, str] = {"tokens": "weighted tokens a minute", "requests": "requests a minute"}
Value = TypeVar("Value", Limits, int)


class Quota(NamedTuple):
    """A monthly quota.

    Attributes:
        scope: As of `Meter`.
        limit: In weighted tokens.
    """

    scope: str
    limit: int
    shadow: bool


class Plan(NamedTuple):
    """The limits that a request meets.

    Attributes:
        principal: Whose request.
        lines: Limits of rates and of concurrency.
        quotas: Limits of months.
        weights: What its tokens count.
        headers: Of responses, on the limits of rates.
        queued: Requests of the tenant that may wait for one pool; None for any number.
        output_cap: The most tokens that the model writes.
    """

    principal: Principal
    lines: tuple[Line, ...]
    quotas: tuple[Quota, ...]
    weights: TokenWeights
    headers: tuple[LimitHeaders, ...] = ()
    queued: int | None = None
    output_cap: int = 0


class Standing(NamedTuple):
    """A tenant and its limits, as one replica sees them.

    Attributes:
        tenant: As metrics name it.
        limits: Its own.
        in_use: Requests of this replica under way; 0 without a limit of concurrency.
        spent: Weighted tokens of this month, of all replicas; 0 without a quota.
    """

    tenant: str
    limits: Limits
    in_use: float
    spent: float


def plan_of(
    principal: Principal,
    model: str,
    config: RateLimitsConfig,
    slice_of: Callable[[Meter, Terms], Slice],
    names: Mapping[str, str],
) -> Plan:
    """Returns what requests meet.

    Args:
        principal: Whose.
        model: The model's own name.
        config: Settings.
        slice_of: Returns the slice of a meter.
        names: As of `Accounts`.
    """
    lines: list[Line] = []
    quotas: list[Quota] = []
    for scope, limits in _scopes(principal, model, config.default, names):
        for meter, terms in _meters(scope, limits, config.burst_s):
            lines.append(Line(slice_of(meter, terms), limits.shadow))
        if limits.tokens_per_month is not None:
            quotas.append(Quota(scope, limits.tokens_per_month, limits.shadow))
    queued = _queued(principal, model, config.default, names)
    cap = _of_model(config.output_caps, model, names) or config.output_cap
    return Plan(principal, tuple(lines), tuple(quotas), config.weights, limit_headers(lines), queued, cap)


def tenant_scope(tenant: str) -> str:
    """Returns the scope of a tenant's own limits; see `Meter`."""
    return f"tenant:{tenant}"


def limits_of(tenant: Tenant, default: Limits) -> Limits:
    """Returns the limits of a tenant: its own, or those of all tenants without any."""
    return default if tenant.limits == NO_LIMITS else tenant.limits


def _of_model(named: Mapping[str, Value], model: str, names: Mapping[str, str]) -> Value | None:
    """Returns what is set for a model, by its own name before any other: whoever writes an alias means the model."""
    found = named.get(model)
    return found or next((value for name, value in named.items() if names.get(name) == model), None)


def _queued(principal: Principal, model: str, default: Limits, names: Mapping[str, str]) -> int | None:
    """Returns the smallest limit of waiting requests that is enforced. Keys have none: their tenant's requests wait."""
    found = _scopes(principal, model, default, names)
    scopes = [limits for scope, limits in found if not scope.startswith("key:")]
    return min((each.queued for each in scopes if each.queued is not None and not each.shadow), default=None)


def _scopes(
    principal: Principal, model: str, default: Limits, names: Mapping[str, str]
) -> Iterator[tuple[str, Limits]]:
    tenant = principal.tenant
    yield tenant_scope(tenant.name), limits_of(tenant, default)
    yield f"key:{principal.key_id}", principal.limits
    if (of_model := _of_model(tenant.model_limits, model, names)) is not None:
        yield f"model:{tenant.name}:{model}", of_model


def _meters(scope: str, limits: Limits, burst_s: float) -> Iterator[tuple[Meter, Terms]]:
    if limits.requests_per_minute is not None:
        rate = limits.requests_per_minute / _MINUTE_S
        yield Meter(scope, "requests"), Terms(rate, max(1.0, rate * burst_s))
    if limits.tokens_per_minute is not None:
        rate = limits.tokens_per_minute / _MINUTE_S
        yield Meter(scope, "tokens"), Terms(rate, rate * burst_s)
    if limits.concurrency is not None:
        yield Meter(scope, "concurrency"), Terms(0.0, float(limits.concurrency))


def over_limit(line: Line, wait_s: float, cost: float) -> RateLimitError:
    """Returns the error for a request that a limit does not let pass.

    Args:
        line: The limit.
        wait_s: Seconds until it might.
        cost: Weighted tokens that it would reserve.
    """
    held = line.held
    kind, _, name = held.meter.scope.partition(":")
    if isinstance(held, RateSlice):
        limit = f"{held.terms.rate_per_s * _MINUTE_S:.0f} {_NAMES[held.meter.kind]}"
    else:
        limit = f"{held.terms.capacity:.0f} requests at the same time"
    seconds = max(1, math.ceil(wait_s)) if math.isfinite(wait_s) else 60
    message = f"The limit of {limit} for the {kind} {name!r} is reached; try again in {seconds} s."
    if held.kind == "tokens" and cost > held.terms.capacity:
        message += (
            f" This request reserves {cost:.0f} weighted tokens and needs the whole burst of {held.terms.capacity:.0f};"
            " a shorter prompt or a lower `max_tokens` passes sooner."
        )
    return RateLimitError(message, retry_after_s=float(seconds))


def over_quota(quota: Quota, spent: float) -> QuotaError:
    """Returns the error for a request of a scope that has spent its month's quota."""
    kind, _, name = quota.scope.partition(":")
    return QuotaError(
        f"The quota of {quota.limit} weighted tokens a month for the {kind} {name!r} is spent ({spent:.0f}). "
        "A new one begins with the next month, by UTC."
    )
