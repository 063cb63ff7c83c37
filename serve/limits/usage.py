"""Usage: of one answer, by tenant, key, model and pool, and as one replica counts it between its reports."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from serve.config.rate_limits import Limits, TokenWeights

_MOST_TENANTS = 200
_OTHER = "other"
_KINDS = ("input", "cached", "output", "rerun")


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one attempt.

    Attributes:
        input: Of the prompt, those from the prefix cache included.
        cached: Of the prompt, from the prefix cache.
        told: By the engine; False for an estimate.
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    told: bool = True

    def worked(self, kept_tokens: int) -> "Usage":
        """Returns what an engine itself did of it that went on behind so many tokens: those it read."""
        if not kept_tokens:
            return self
        return Usage(self.input + kept_tokens, self.cached, max(0, self.output - kept_tokens), self.told)

    def cost(self, weights: TokenWeights) -> float:
        fresh = self.input - self.cached
        return weights.input * fresh + weights.cached * self.cached + weights.output * self.output


class UsageKey(NamedTuple):
    """By what usage is summed up."""

    tenant: str
    key: str
    model: str
    pool: str
    speculative: bool


class UsageSums(Struct):
    """Usage of several requests.

    Attributes:
        requests: That were admitted.
        input: Tokens of prompts, those from the prefix cache included.
        cached: Tokens of prompts that came from the prefix cache.
        rerun: Tokens of attempts that were not delivered, prompts included; charged to nobody.
        unsettled: Requests whose usage no engine told, so that it is an estimate.
    """

    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    rerun: int = 0
    errors: int = 0
    unsettled: int = 0


USAGE_COLUMNS = UsageSums.__struct_fields__


class Tally:
    """The usage of one replica: since its last report, and since its start for metrics.

    Attributes:
        tokens: By tenant, model and kind, up to the last report; tenants beyond the 200th together as `other`.
        used: Requests and weighted tokens by tenant and kind of limit, up to the last report.
        refused: By tenant, kind of limit and whether it was `enforced` or in `shadow`.
        limits: Of the tenants that were seen, without `other`.
    """

    def __init__(self, weights: TokenWeights) -> None:
        self.limits: dict[str, Limits] = {}
        self.used: dict[tuple[str, str], float] = {}
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.refused: Counter[tuple[str, str, str]] = Counter()
        self._weights = weights
        self._tenants: set[str] = set()
        # Keys are plain tuples where a request is counted: a named one takes ten times as long to make.
        self._sums: dict[tuple[str, str, str, str, bool], UsageSums] = {}

    def add(self, key: tuple[str, str, str, str, bool], usage: Usage, rerun: int = 0, failed: bool = False) -> None:
        """Adds one request. The key has the fields of a `UsageKey`; `rerun` counts the tokens of attempts that were not
        delivered.
        """
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = UsageSums()
        sums.requests += 1
        sums.input += usage.input
        sums.cached += usage.cached
        sums.output += usage.output
        sums.rerun += rerun
        sums.errors += failed
        sums.unsettled += not usage.told

    def take(self) -> Mapping[UsageKey, UsageSums]:
        """Returns the usage since the last call."""
        counted, self._sums = self._sums, {}
        usage = {UsageKey(*key): sums for key, sums in counted.items()}
        for key, sums in usage.items():  # here and not for each request: it is as true a second later
            tenant = self.label(key.tenant)
            for kind in _KINDS:
                self.tokens[tenant, key.model, kind] += getattr(sums, kind)
            cost = Usage(sums.input, sums.cached, sums.output).cost(self._weights)
            for kind, amount in (("requests", sums.requests), ("tokens", cost)):
                self.used[tenant, kind] = self.used.get((tenant, kind), 0.0) + amount
        return usage

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
