"""Usage summed up on one replica: since the last report, and since its start for metrics."""

from collections import Counter

from serve.config.rate_limits import Limits, TokenWeights
from serve.limits.messages import USAGE_COLUMNS, Spending, UsageKey, UsageSums
from serve.limits.usage import Usage

_MOST_TENANTS = 200
_OTHER = "other"
# What is made for each request is a plain tuple: a named one takes ten times as long.
_Key = tuple[str, str, str, str, bool]
_KINDS = ("input", "cached", "output", "rerun")


class _Counts:
    """Sums that grow; see `UsageSums`."""

    __slots__ = USAGE_COLUMNS

    def __init__(self) -> None:
        self.requests = self.input = self.cached = self.output = self.rerun = self.errors = self.unsettled = 0

    def sums(self) -> UsageSums:
        return UsageSums(self.requests, self.input, self.cached, self.output, self.rerun, self.errors, self.unsettled)


class Tally:
    """The sums.

    Args:
        weights: What a token counts.

    Attributes:
        tokens: By tenant, model and kind, up to the last report; tenants beyond the 200th together as `other`.
        used: Requests and weighted tokens by tenant and kind of limit, up to the last report.
        refused: By tenant, limit and whether it was `enforced` or in `shadow`.
        limits: Of the tenants that were seen, without `other`.
    """

    def __init__(self, weights: TokenWeights) -> None:
        self.limits: dict[str, Limits] = {}
        self.used: dict[tuple[str, str], float] = {}
        self._weights = weights
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.refused: Counter[tuple[str, str, str]] = Counter()
        self._tenants: set[str] = set()
        self._counts: dict[_Key, _Counts] = {}
        self._spent: Counter[str] = Counter()

    def add(self, key: _Key, usage: Usage, rerun: int = 0, failed: bool = False) -> None:
        """Adds one request.

        Args:
            key: By what it is summed up: the fields of `UsageKey`.
            usage: Of what was delivered.
            rerun: Tokens of attempts that were not.
            failed: It ended with an error.
        """
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = _Counts()
        counts.requests += 1
        counts.input += usage.input
        counts.cached += usage.cached
        counts.output += usage.output
        counts.rerun += rerun
        counts.errors += failed
        counts.unsettled += not usage.told

    def spend(self, scope: str, cost: float) -> None:
        """Adds to what a scope with a monthly quota has spent."""
        self._spent[scope] += cost  # type: ignore[assignment]  # a Counter of floats

    def unreported(self, scope: str) -> float:
        """Returns what a scope has spent since the last report."""
        return self._spent[scope]

    def take(self) -> tuple[dict[UsageKey, UsageSums], tuple[Spending, ...]]:
        """Returns what was added since the last call."""
        counts, self._counts = self._counts, {}
        spent, self._spent = self._spent, Counter()
        sums = {UsageKey(*key): each.sums() for key, each in counts.items()}
        for key, summed in sums.items():  # here and not for each request: it is as true a second later
            tenant = self.label(key.tenant)
            for kind in _KINDS:
                self.tokens[tenant, key.model, kind] += getattr(summed, kind)
            cost = Usage(summed.input, summed.cached, summed.output).cost(self._weights)
            for limit, amount in (("requests", summed.requests), ("tokens", cost)):
                self.used[tenant, limit] = self.used.get((tenant, limit), 0.0) + amount
        return sums, tuple(Spending(scope, cost) for scope, cost in spent.items())

    def meet(self, tenant: str, limits: Limits) -> None:
        """Remembers the limits of a tenant as they are now."""
        if (label := self.label(tenant)) != _OTHER:
            self.limits[label] = limits

    def label(self, tenant: str) -> str:
        """Returns the tenant's name as metrics have it, of which there are few."""
        if tenant in self._tenants:
            return tenant
        if len(self._tenants) >= _MOST_TENANTS:
            return _OTHER
        self._tenants.add(tenant)
        return tenant
