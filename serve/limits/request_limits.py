"""The limits of a principal's requests to a model: slices to spend from, response headers, and refusals."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from serve.access.principal import NO_LIMITS, Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, TokenWeights
from serve.errors import RateLimitError
from serve.http1.message import RawHeaders
from serve.limits.ledger_messages import Kind, LimitId, LimitTerms
from serve.limits.quota import Quota
from serve.limits.slice import RateSlice, Slice

_MINUTE_S = 60.0
_NAMES: dict[Kind, str] = {"requests": "requests a minute", "tokens": "weighted tokens a minute"}
Value = TypeVar("Value", Limits, int)


class LimitHeaders:
    """The `x-ratelimit-*` headers of OpenAI's API on limits of one kind; only their numbers are written each time."""

    __slots__ = ("_limits", "_others", "_remaining", "_reset")

    def __init__(self, kind: Kind, slices: Iterable[RateSlice]) -> None:
        name = f"x-ratelimit-limit-{kind}".encode()
        self._limits = [(held, (name, b"%d" % round(held.terms.rate_per_s * _MINUTE_S))) for held in slices]
        self._others = self._limits[1:]
        self._remaining = f"x-ratelimit-remaining-{kind}".encode()
        self._reset = f"x-ratelimit-reset-{kind}".encode()

    def write(self, headers: RawHeaders) -> None:
        """Adds the headers: of the limit with the least left, that, what is left, and when it is whole again."""
        least, limit = self._limits[0]
        left = least.left
        for held, other in self._others:
            if (remaining := held.left) < left:
                least, limit, left = held, other, remaining
        if least.level is None and not least.alone:
            return  # the ledger has not answered yet: an answer that spends nothing of this kind asks for none of it
        rate_per_s, capacity = least.terms
        if left >= capacity:  # what was given back is counted twice until the ledger reports again
            left, reset_s = capacity, 0.0
        else:
            left = left if left > 0 else 0.0
            reset_s = (capacity - left) / rate_per_s
        headers += limit, (self._remaining, b"%d" % left), (self._reset, b"%.3fs" % reset_s)


def limit_headers(slices: Iterable[Slice]) -> tuple[LimitHeaders, ...]:
    """Returns the headers on some limits; those that are counted in shadow, and concurrency, have none."""
    rates = [held for held in slices if isinstance(held, RateSlice) and not held.shadow]
    by_kind = ((kind, [held for held in rates if held.kind == kind]) for kind in _NAMES)
    return tuple(LimitHeaders(kind, found) for kind, found in by_kind if found)


class RequestLimits(NamedTuple):
    """The limits that a request meets.

    Attributes:
        slices: Of limits of rates and of concurrency.
        queued: Requests of the tenant that may wait for one pool; None for any number.
        output_cap: The most tokens that the model writes.
    """

    principal: Principal
    slices: tuple[Slice, ...]
    quotas: tuple[Quota, ...]
    weights: TokenWeights
    headers: tuple[LimitHeaders, ...] = ()
    queued: int | None = None
    output_cap: int = 0


class Standing(NamedTuple):
    """A tenant and its limits, as one replica sees them.

    Attributes:
        in_use: Requests of this replica under way; 0 without a limit of concurrency.
        spent: Weighted tokens of this month, of all replicas; 0 without a quota.
    """

    tenant: str
    limits: Limits
    in_use: float
    spent: float


def request_limits(
    principal: Principal,
    model: str,
    config: RateLimitsConfig,
    slice_of: Callable[[LimitId, LimitTerms, bool], Slice],
    names: Mapping[str, str],
) -> RequestLimits:
    """Returns the limits that a request to a model meets. `names` has the models' own names by every name of theirs."""
    slices: list[Slice] = []
    quotas: list[Quota] = []
    queued: list[int] = []
    for scope, limits in _scopes(principal, model, config.default, names):
        for kind, terms in _terms(limits, config.burst_s):
            slices.append(slice_of(LimitId(scope, kind), terms, limits.shadow))
        if limits.tokens_per_month is not None:
            quotas.append(Quota(scope, limits.tokens_per_month, limits.shadow))
        # A key has no limit of requests that wait: it is its tenant's that do.
        if limits.queued is not None and not limits.shadow and not scope.startswith("key:"):
            queued.append(limits.queued)
    cap = _of_model(config.output_caps, model, names) or config.output_cap
    headers = limit_headers(slices)
    return RequestLimits(
        principal, tuple(slices), tuple(quotas), config.weights, headers, min(queued, default=None), cap
    )


def tenant_scope(tenant: str) -> str:
    """Returns the scope of a tenant's own limits; see `LimitId`."""
    return f"tenant:{tenant}"


def limits_of(tenant: Tenant, default: Limits) -> Limits:
    """Returns the limits of a tenant: its own, or those of all tenants without any."""
    return default if tenant.limits == NO_LIMITS else tenant.limits


def _of_model(named: Mapping[str, Value], model: str, names: Mapping[str, str]) -> Value | None:
    """Returns what is set for a model, by its own name before any other: whoever writes an alias means the model."""
    found = named.get(model)
    return found or next((value for name, value in named.items() if names.get(name) == model), None)


def _scopes(
    principal: Principal, model: str, default: Limits, names: Mapping[str, str]
) -> Iterator[tuple[str, Limits]]:
    tenant = principal.tenant
    yield tenant_scope(tenant.name), limits_of(tenant, default)
    yield f"key:{principal.key_id}", principal.limits
    for key_id, limits in principal.shared:
        yield f"key:{key_id}", limits
    if (of_model := _of_model(tenant.model_limits, model, names)) is not None:
        yield f"model:{tenant.name}:{model}", of_model


def _terms(limits: Limits, burst_s: float) -> Iterator[tuple[Kind, LimitTerms]]:
    if limits.requests_per_minute is not None:
        rate = limits.requests_per_minute / _MINUTE_S
        yield "requests", LimitTerms(rate, max(1.0, rate * burst_s))
    if limits.tokens_per_minute is not None:
        rate = limits.tokens_per_minute / _MINUTE_S
        yield "tokens", LimitTerms(rate, rate * burst_s)
    if limits.concurrency is not None:
        yield "concurrency", LimitTerms(0.0, float(limits.concurrency))


def over_limit(held: Slice, wait_s: float, cost: float) -> RateLimitError:
    """Returns the error for a request that a limit does not let pass."""
    kind, _, name = held.id.scope.partition(":")
    rate_per_s, capacity = held.terms
    if isinstance(held, RateSlice):
        limit = f"{rate_per_s * _MINUTE_S:.0f} {_NAMES[held.kind]}"
    else:
        limit = f"{capacity:.0f} requests at the same time"
    seconds = max(1, math.ceil(wait_s)) if math.isfinite(wait_s) else 60
    message = f"The limit of {limit} for the {kind} {name!r} is reached; try again in {seconds} s."
    if held.kind == "requests":  # fewer pass at once than the number says, which would seem wrong without this
        message += f" It lets {math.floor(capacity)} begin at once, then one every {1 / rate_per_s:.3g} s."
    if held.kind == "tokens" and cost > held.terms.capacity:
        message += (
            f" This request reserves {cost:.0f} weighted tokens and needs the whole burst of {held.terms.capacity:.0f};"
            " a shorter prompt or a lower `max_tokens` passes sooner."
        )
    return RateLimitError(message, retry_after_s=float(seconds))
