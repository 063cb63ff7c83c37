"""How a request that is over a limit is refused, and what every response says about limits."""

import math
from collections.abc import Iterable, MutableMapping

from serve.errors import QuotaError, RateLimitError
from serve.limits.messages import Kind
from serve.limits.plan import Quota
from serve.limits.reservation import Line
from serve.limits.slice import RateSlice

_MINUTE_S = 60.0
# The names of the headers on a kind's limit, on what is left of it, and on when that is whole again.
_HEADERS: dict[Kind, tuple[str, str, str]] = {
    kind: (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
    for kind in ("tokens", "requests")
}
_NAMES: dict[Kind, str] = {"tokens": "weighted tokens a minute", "requests": "requests a minute"}


def over_limit(line: Line, wait_s: float) -> RateLimitError:
    """Returns the error for a request that a limit does not let pass.

    Args:
        line: The limit.
        wait_s: Seconds until it might.
    """
    held = line.held
    kind, _, name = held.meter.scope.partition(":")
    if isinstance(held, RateSlice):
        limit = f"{held.terms.rate_per_s * _MINUTE_S:.0f} {_NAMES[held.meter.kind]}"
    else:
        limit = f"{held.terms.capacity:.0f} requests at the same time"
    seconds = max(1, math.ceil(wait_s)) if math.isfinite(wait_s) else 60
    message = f"The limit of {limit} for the {kind} {name!r} is reached; try again in {seconds} s."
    return RateLimitError(message, None, None, float(seconds))


def over_quota(quota: Quota, spent: float) -> QuotaError:
    """Returns the error for a request of a scope that has spent its month's quota."""
    kind, _, name = quota.scope.partition(":")
    return QuotaError(
        f"The quota of {quota.limit} weighted tokens a month for the {kind} {name!r} is spent ({spent:.0f}). "
        "A new one begins with the next month, by UTC."
    )


def describe(lines: Iterable[Line], headers: MutableMapping[str, str]) -> None:
    """Puts the `x-ratelimit-*` headers of OpenAI's API in: of each kind, the limit with the least left.

    Args:
        lines: The limits.
        headers: The response's.
    """
    least: dict[Kind, tuple[float, RateSlice]] = {}
    for held, shadow in lines:
        if shadow or not isinstance(held, RateSlice):
            continue
        kind, remaining = held.meter.kind, held.remaining
        if kind not in least or remaining < least[kind][0]:
            least[kind] = remaining, held
    for kind, (remaining, held) in least.items():
        limit_name, remaining_name, reset_name = _HEADERS[kind]
        headers[limit_name] = str(round(held.terms.rate_per_s * _MINUTE_S))
        headers[remaining_name] = str(int(remaining))
        headers[reset_name] = f"{held.reset_s():.3f}s"
