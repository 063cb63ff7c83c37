"""Refusals of requests that are over a limit."""

import math

from serve.errors import QuotaError, RateLimitError
from serve.limits.messages import Kind
from serve.limits.plan import Quota
from serve.limits.reservation import Line
from serve.limits.slice import RateSlice

_MINUTE_S = 60.0
_NAMES: dict[Kind, str] = {"tokens": "weighted tokens a minute", "requests": "requests a minute"}


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
    return RateLimitError(message, None, None, float(seconds))


def over_quota(quota: Quota, spent: float) -> QuotaError:
    """Returns the error for a request of a scope that has spent its month's quota."""
    kind, _, name = quota.scope.partition(":")
    return QuotaError(
        f"The quota of {quota.limit} weighted tokens a month for the {kind} {name!r} is spent ({spent:.0f}). "
        "A new one begins with the next month, by UTC."
    )
