"""Half an hour of what the pools did, from the counters of gateway replicas that come and go. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from serve.admin.merged_metrics import COUNTERS

PERIOD_S = 5.0
HALF_HOUR_S = 1800.0  # is remembered
_TICKS = round(HALF_HOUR_S / PERIOD_S)
_WINDOW = 12  # ticks that rates and quantiles are about: a minute
_COUNTED = frozenset(COUNTERS.values())
_NO_ENGINES: Mapping[Any, Any] = MappingProxyType({})
_NEVER: tuple[float, Mapping[str, float]] = 0.0, MappingProxyType({})

PoolName = tuple[str, str]  # model, pool
_CounterKey = tuple[str, tuple[tuple[str, str], ...]]
_Adds = Callable[["Tick", Mapping[str, str], float], None]


@dataclass(slots=True)
class PoolTick:
    """One pool in one period, all gateway replicas together.

    Attributes:
        errors: Of them with a status of 500 or more.
        speculated: Of them with speculation.
        first_tokens: Streams by the upper bound, in seconds, of their time to the first token; not cumulative.
        engines: What its engines have counted, by the names of `serve.admin.merged_metrics`.
        gauges: The highest figures of its engines at its end, likewise.
        steps: With drafts, of engines that tell how many tokens theirs brought, and do not count them.
        stepped: Tokens of these steps.
    """

    requests: float = 0.0
    errors: float = 0.0
    speculated: float = 0.0
    first_tokens: Counter[float] = field(default_factory=Counter)
    held: int = 0
    waiting: int = 0
    engines: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, float] = field(default_factory=dict)
    steps: float = 0.0
    stepped: float = 0.0

    def add(self, other: "PoolTick") -> None:
        """Adds what another period has counted; the figures at the end are those of the later one."""
        self.requests += other.requests
        self.errors += other.errors
        self.speculated += other.speculated
        self.first_tokens += other.first_tokens
        self.engines += other.engines
        self.gauges = other.gauges
        self.steps += other.steps
        self.stepped += other.stepped


@dataclass(slots=True)
class Speed:
    """Tokens of answers, and the seconds that they took."""

    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Tick:
    """One period.

    Attributes:
        at_s: Its end in Unix time.
        decisions: Requests by the reason that led them where they went; empty where none did.
        tenants: Tokens by kind, what limits count (`used_requests`, `used_tokens`), and requests `refused` by a limit,
            of each tenant.
        failures: Requests that failed, by model, status and cause.
        answers: How fast answers were, by model, speculation (`on`, `off`) and class.
    """

    at_s: float
    pools: dict[PoolName, PoolTick] = field(default_factory=lambda: defaultdict(PoolTick))
    decisions: Counter[str] = field(default_factory=Counter)
    tenants: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    answers: dict[tuple[str, str, str], Speed] = field(default_factory=lambda: defaultdict(Speed))
    reruns: float = 0.0

    def add(self, other: "Tick") -> None:
        self.at_s = other.at_s
        self.decisions += other.decisions
        self.failures += other.failures
        self.reruns += other.reruns
        for tenant, counts in other.tenants.items():
            self.tenants[tenant] += counts
        for answer, speed in other.answers.items():
            self.answers[answer].tokens += speed.tokens
            self.answers[answer].seconds += speed.seconds
        for name, pool in other.pools.items():
            self.pools[name].add(pool)


class History:
    """The last half hour in periods of `PERIOD_S`."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque(maxlen=_TICKS)
        # Of the last period until there is another one: the board is made every second, a period lasts five.
        self._window: Tick | None = None
        self._half_hour: Tick | None = None
        self._series: dict[str, list[Any]] | None = None
        self._counters: dict[str, dict[_CounterKey, float]] = {}
        self._engines: dict[str, tuple[float, Mapping[str, float]]] = {}  # when they last answered, and what

    def add(
        self,
        at_s: float,
        snapshots: Mapping[str, Mapping[str, Any]],
        engines: Mapping[tuple[PoolName, str], Mapping[str, float]] = _NO_ENGINES,
    ) -> None:
        """Adds a period.

        What a replica had counted before it was first seen belongs to no period, and neither does what it counted
        between its last snapshot and its end. Engines' figures are by pool and URL, see `merged_metrics`; one that did
        not answer has none.
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
        self._add_engines(tick, engines)
        self._ticks.append(tick)
        self._window = self._half_hour = self._series = None

    def _add_engines(self, tick: Tick, engines: Mapping[tuple[PoolName, str], Mapping[str, float]]) -> None:
        """Adds what engines have counted since their last answers.

        One that has missed a few periods is made up for at its next answer. After more than what rates are about it
        starts afresh, and so does a counter that was not there before: what they tell has been counted at any time.
        """
        lately = {url: each for url, each in self._engines.items() if tick.at_s - each[0] < PERIOD_S * _WINDOW}
        for (pool, url), told in engines.items():
            row, (_, before) = tick.pools[pool], lately.get(url, _NEVER)
            length = told.get("tokens_a_step", 0.0)
            if length >= 1.0 and "written" in before:  # less: it has drafted nothing
                written = _increment(before["written"], told.get("written", 0.0))
                row.stepped += written
                row.steps += written / length
            for name, value in told.items():
                if name not in _COUNTED:
                    row.gauges[name] = max(row.gauges.get(name, 0.0), value)
                elif name in before:
                    row.engines[name] += int(_increment(before[name], value))
        self._engines = lately | {url: (tick.at_s, told) for (_, url), told in engines.items() if told}

    def window(self) -> Tick:
        """Returns the last minute as one period, not to be changed."""
        if self._window is None:
            self._window = _summed(list(self._ticks)[-_WINDOW:])
        return self._window

    def half_hour(self) -> Tick:
        """Returns all that is known as one period, not to be changed."""
        if self._half_hour is None:
            self._half_hour = _summed(self._ticks)
        return self._half_hour

    @property
    def window_s(self) -> float:
        """Seconds that `window` is about; 0 without a period."""
        return PERIOD_S * min(len(self._ticks), _WINDOW)

    def series(self, only: PoolName | None = None) -> dict[str, list[Any]]:
        """Returns lines for charts, one value a period; not to be changed. Without a pool, they are about all together.

        Returns:
            `at_s`; `requests` a second; `errors` a second; `ttft_p95_s`, None without streams; `held`; `waiting`;
            `speculated`, the share of requests with speculation; `tokens_a_step` of engines that draft. A line that
            knows nothing is left out.
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
            lines["speculated"].append(speculated(rows))
            lines["tokens_a_step"].append(tokens_a_step(rows))
        return {name: values for name, values in lines.items() if any(value is not None for value in values)}


def speculated(pools: Iterable[PoolTick]) -> float | None:
    """Returns the share of requests with speculation; None without requests."""
    rows = list(pools)
    requests = sum(row.requests for row in rows)
    return round(sum(row.speculated for row in rows) / requests, 4) if requests else None


def tokens_a_step(pools: Iterable[PoolTick]) -> float | None:
    """Returns how many tokens a step with drafts brings: one and those accepted; None without such steps."""
    rows = list(pools)
    counted = sum(row.engines["drafts"] for row in rows)
    steps = counted + sum(row.steps for row in rows)
    tokens = counted + sum(row.engines["accepted"] + row.stepped for row in rows)
    return round(tokens / steps, 2) if steps else None


def _summed(ticks: Iterable[Tick]) -> Tick:
    total = Tick(0.0)
    for tick in ticks:
        total.add(tick)
    return total


def quantile(bounds: Mapping[float, float], share: float) -> float | None:
    """Returns the value below which a share of the observations lie, interpolated as Prometheus does. Observations are
    by their upper bound, infinity for those above all bounds; the share is between 0 and 1.
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
        if name == "specgate_time_to_first_token_seconds_bucket":
            cumulative[labels["model"], labels["pool"]][float(labels["le"])] = count
        elif (adds := _ADDS.get(name)) is not None:
            adds(tick, labels, count)
    for pool, buckets in cumulative.items():
        tick.pools[pool].first_tokens += Counter(_each(sorted(buckets.items())))


def _add_requests(tick: Tick, labels: Mapping[str, str], count: float) -> None:
    if labels["pool"]:
        row = tick.pools[labels["model"], labels["pool"]]
        row.requests += count
        row.errors += count if labels["status"] >= "500" else 0
        row.speculated += count if labels["speculative"] == "on" else 0


def _speed(tick: Tick, labels: Mapping[str, str]) -> Speed:
    return tick.answers[labels["model"], labels["speculative"], labels["request_class"]]


def _add_tokens(tick: Tick, labels: Mapping[str, str], count: float) -> None:
    _speed(tick, labels).tokens += count


def _add_seconds(tick: Tick, labels: Mapping[str, str], count: float) -> None:
    _speed(tick, labels).seconds += count


def _add_attempts(tick: Tick, labels: Mapping[str, str], count: float) -> None:
    tick.reruns += count


def _subtract_answers(tick: Tick, labels: Mapping[str, str], count: float) -> None:
    tick.reruns -= count  # the last attempt of an answer is no rerun


def _adds_of_tenant(name: str) -> _Adds:
    def add(tick: Tick, labels: Mapping[str, str], count: float) -> None:
        tick.tenants[labels["tenant"]][name.format_map(labels)] += int(count)

    return add


_ADDS: Mapping[str, _Adds] = {
    "specgate_requests_total": _add_requests,
    "specgate_decisions_total": lambda tick, labels, count: tick.decisions.update({labels["reason"]: int(count)}),
    "specgate_errors_total": lambda tick, labels, count: tick.failures.update(
        {(labels["model"], labels["status"], labels["cause"]): int(count)}
    ),
    "specgate_answer_tokens_total": _add_tokens,
    "specgate_answer_seconds_total": _add_seconds,
    "specgate_verdicts_total": _add_attempts,
    "specgate_answers_total": _subtract_answers,
    # Under which name a tenant's row has a metric, made of the metric's labels.
    "specgate_tokens_total": _adds_of_tenant("{kind}"),
    "specgate_limits_used_total": _adds_of_tenant("used_{limit}"),
    "specgate_limits_refused_total": _adds_of_tenant("refused"),
}


def _each(cumulative: Iterable[tuple[float, float]]) -> dict[float, int]:
    """Returns the counts of single buckets, given those of each bucket and all below it."""
    counts: dict[float, int] = {}
    below = 0.0
    for bound, count in cumulative:
        if count > below:
            counts[bound] = int(count - below)
        below = count
    return counts
