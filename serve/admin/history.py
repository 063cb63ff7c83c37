"""Half an hour of what the pools did, from the counters of gateway replicas that come and go. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERIOD_S = 5.0
_TICKS = 360  # half an hour
_WINDOW = 12  # ticks that rates and quantiles are about: a minute
# Under which name a tenant's row has a metric, made of the metric's labels.
_TENANTS_COUNT = {
    "specgate_tokens_total": "{kind}",
    "specgate_limits_used_total": "used_{limit}",
    "specgate_limits_refused_total": "refused",
}

PoolName = tuple[str, str]  # model, pool
Samples = Sequence[tuple[str, Mapping[str, str], float]]  # name, labels, value
_CounterKey = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class PoolTick:
    """One pool in one period, all gateway replicas together.

    Attributes:
        requests: That ended.
        errors: Of them with a status of 500 or more.
        first_tokens: Streams by the upper bound, in seconds, of their time to the first token; not cumulative.
        held: Slots held at its end.
        waiting: Requests waiting at its end.
    """

    requests: float = 0.0
    errors: float = 0.0
    first_tokens: Counter[float] = field(default_factory=Counter)
    held: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Tick:
    """One period.

    Attributes:
        at_s: Its end in Unix time.
        decisions: Requests by the reason that led them where they went; empty where none did.
        tenants: Tokens by kind, what limits count (`used_requests`, `used_tokens`), and requests `refused` by a limit,
            of each tenant.
    """

    at_s: float
    pools: dict[PoolName, PoolTick] = field(default_factory=lambda: defaultdict(PoolTick))
    decisions: Counter[str] = field(default_factory=Counter)
    tenants: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


class History:
    """The last half hour in periods of `PERIOD_S`."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque(maxlen=_TICKS)
        # Of the last period until there is another one: the board is made every second, a period lasts five.
        self._window: Tick | None = None
        self._series: dict[str, list[Any]] | None = None
        self._counters: dict[str, dict[_CounterKey, float]] = {}

    def add(self, at_s: float, snapshots: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds a period.

        What a replica had counted before it was first seen belongs to no period, and neither does what it counted
        between its last snapshot and its end.

        Args:
            at_s: Unix time.
            snapshots: What each gateway replica sees, by its name.
        """
        tick = Tick(at_s)
        for replica, snapshot in snapshots.items():
            counters = {(name, tuple(sorted(labels.items()))): value for name, labels, value in snapshot["samples"]}
            before = self._counters.get(replica)
            if before is not None:
                _count(tick, {key: _increment(before.get(key, 0.0), value) for key, value in counters.items()})
            self._counters[replica] = counters
            for pool in snapshot["pools"]:
                row = tick.pools[pool["model"], pool["pool"]]
                row.held += pool["held"]
                row.waiting += pool["waiting"]
        self._counters = {name: each for name, each in self._counters.items() if name in snapshots}
        self._ticks.append(tick)
        self._window = self._series = None

    def window(self) -> Tick:
        """Returns the last minute as one period, not to be changed."""
        if self._window is None:
            self._window = self._summed()
        return self._window

    def _summed(self) -> Tick:
        ticks = list(self._ticks)[-_WINDOW:]
        total = Tick(ticks[-1].at_s if ticks else 0.0)
        for tick in ticks:
            total.decisions += tick.decisions
            for tenant, counts in tick.tenants.items():
                total.tenants[tenant] += counts
            for name, pool in tick.pools.items():
                row = total.pools[name]
                row.requests += pool.requests
                row.errors += pool.errors
                row.first_tokens += pool.first_tokens
        return total

    @property
    def window_s(self) -> float:
        """Seconds that `window` is about; 0 without a period."""
        return PERIOD_S * min(len(self._ticks), _WINDOW)

    def series(self, only: PoolName | None = None) -> dict[str, list[Any]]:
        """Returns lines for charts, one value a period; not to be changed.

        Args:
            only: One pool; without it, all together.

        Returns:
            `at_s`; `requests` a second; `errors` a second; `ttft_p95_s`, None without streams; `held`; `waiting`.
        """
        if only is not None:
            return self._lines(only)
        if self._series is None:
            self._series = self._lines(None)
        return self._series

    def _lines(self, only: PoolName | None) -> dict[str, list[Any]]:
        lines: dict[str, list[Any]] = defaultdict(list)
        for tick in self._ticks:
            rows = [pool for name, pool in tick.pools.items() if only in (None, name)]
            first_tokens = sum((row.first_tokens for row in rows), Counter[float]())
            lines["at_s"].append(round(tick.at_s))
            lines["requests"].append(round(sum(row.requests for row in rows) / PERIOD_S, 2))
            lines["errors"].append(round(sum(row.errors for row in rows) / PERIOD_S, 2))
            lines["ttft_p95_s"].append(quantile(first_tokens, 0.95))
            lines["held"].append(sum(row.held for row in rows))
            lines["waiting"].append(sum(row.waiting for row in rows))
        return dict(lines)


def quantile(bounds: Mapping[float, float], share: float) -> float | None:
    """Returns the value below which a share of the observations lie, interpolated as Prometheus does.

    Args:
        bounds: Observations by their upper bound; infinity for those above all bounds.
        share: Between 0 and 1.
    """
    total = sum(bounds.values())
    if not total:
        return None
    rank, below, lower = share * total, 0.0, 0.0
    for bound in sorted(bounds):
        count = bounds[bound]
        if below + count >= rank:
            if bound == float("inf"):
                return lower
            return round(lower + (bound - lower) * (rank - below) / count, 4)
        below, lower = below + count, bound
    return lower


def _increment(before: float, now: float) -> float:
    """Returns by how much a counter has grown; a smaller one has started again."""
    return now - before if now >= before else now


def _count(tick: Tick, increments: Mapping[_CounterKey, float]) -> None:
    """Adds to a period what counters have grown by."""
    cumulative: dict[PoolName, dict[float, float]] = defaultdict(dict)
    for (name, pairs), count in increments.items():
        labels = dict(pairs)
        if name == "specgate_decisions_total":
            tick.decisions[labels["reason"]] += int(count)
        elif name in _TENANTS_COUNT:
            tick.tenants[labels["tenant"]][_TENANTS_COUNT[name].format_map(labels)] += int(count)
        elif name == "specgate_requests_total" and labels["pool"]:
            row = tick.pools[labels["model"], labels["pool"]]
            row.requests += count
            row.errors += count if labels["status"] >= "500" else 0
        elif name == "specgate_time_to_first_token_seconds_bucket":
            cumulative[labels["model"], labels["pool"]][float(labels["le"])] = count
    for pool, buckets in cumulative.items():
        tick.pools[pool].first_tokens += Counter(_each(sorted(buckets.items())))


def _each(cumulative: Iterable[tuple[float, float]]) -> dict[float, int]:
    """Returns the counts of single buckets, given those of each bucket and all below it."""
    counts: dict[float, int] = {}
    below = 0.0
    for bound, count in cumulative:
        if count > below:
            counts[bound] = int(count - below)
        below = count
    return counts
