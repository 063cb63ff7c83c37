"""The `x-ratelimit-*` headers of OpenAI's API, which tell every client of its limits."""

from collections.abc import Iterable

from serve.http1.message import RawHeaders
from serve.limits.messages import Kind
from serve.limits.slice import Line, RateSlice

_MINUTE_S = 60.0
_KINDS: tuple[Kind, ...] = ("requests", "tokens")


class LimitHeaders:
    """The headers on the limits of one kind; only their numbers are written for each response.

    Args:
        kind: Of the limits.
        slices: Of all that are enforced.
    """

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
        left = least.held + least.shared
        for held, other in self._others:
            if (remaining := held.held + held.shared) < left:
                least, limit, left = held, other, remaining
        if least.level is None and not least.alone:
            return  # the ledger has not told yet: an answer that spends nothing of this kind asks for none of it
        rate_per_s, capacity = least.terms
        if left >= capacity:  # what was given back is counted twice until the ledger tells again
            left, reset_s = capacity, 0.0
        else:
            left = left if left > 0 else 0.0
            reset_s = (capacity - left) / rate_per_s
        headers += limit, (self._remaining, b"%d" % left), (self._reset, b"%.3fs" % reset_s)


def limit_headers(lines: Iterable[Line]) -> tuple[LimitHeaders, ...]:
    """Returns the headers on some limits; those that are counted in shadow, and concurrency, have none."""
    slices = [held for held, shadow in lines if not shadow and isinstance(held, RateSlice)]
    by_kind = ((kind, [held for held in slices if held.kind == kind]) for kind in _KINDS)
    return tuple(LimitHeaders(kind, found) for kind, found in by_kind if found)
