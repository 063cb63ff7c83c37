"""Usage summed up on one replica: since the last report, and since its start for metrics."""

from collections import Counter

from serve.limits.messages import Spending, UsageKey, UsageSums

_MOST_TENANTS = 200
_OTHER = "other"
_KINDS = ("input", "cached", "output", "rerun")


class Tally:
    """The sums.

    Attributes:
        tokens: By tenant, model and kind, since the start; tenants beyond the 200th together as `other`.
        refused: By scope's kind, tenant and limit; `shadow` for those that were let pass.
    """

    def __init__(self) -> None:
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.refused: Counter[tuple[str, str, str]] = Counter()
        self._tenants: set[str] = set()
        self._usage: dict[UsageKey, list[int]] = {}
        self._spent: Counter[str] = Counter()

    def add(self, key: UsageKey, sums: UsageSums) -> None:
        """Adds one request."""
        usage = self._usage.get(key)
        if usage is None:
            usage = self._usage[key] = [0] * len(sums)
        for place, count in enumerate(sums):
            usage[place] += count
        tenant = self.label(key.tenant)
        for kind, count in zip(_KINDS, sums[1:5], strict=True):
            if count:
                self.tokens[tenant, key.model, kind] += count

    def spend(self, scope: str, cost: float) -> None:
        """Adds to what a scope with a monthly quota has spent."""
        self._spent[scope] += cost  # type: ignore[assignment]  # a Counter of floats

    def unreported(self, scope: str) -> float:
        """Returns what a scope has spent since the last report."""
        return self._spent[scope]

    def take(self) -> tuple[dict[UsageKey, UsageSums], tuple[Spending, ...]]:
        """Returns what was added since the last call."""
        usage, self._usage = self._usage, {}
        spent, self._spent = self._spent, Counter()
        sums = {key: UsageSums(*counts) for key, counts in usage.items()}
        return sums, tuple(Spending(scope, cost) for scope, cost in spent.items())

    def label(self, tenant: str) -> str:
        """Returns the tenant's name as metrics have it, of which there are few."""
        if tenant in self._tenants:
            return tenant
        if len(self._tenants) >= _MOST_TENANTS:
            return _OTHER
        self._tenants.add(tenant)
        return tenant
