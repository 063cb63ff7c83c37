"""Metrics of one gateway replica: counted as requests pass, or read when somebody scrapes.

Every name is written as it is scraped, a counter's with its `_total`, so that a search for it finds what counts it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter and histogram, of which Prometheus makes no use

Reading = Callable[[], Iterable[tuple[Sequence[str], float]]]
_FAMILIES: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class Declared(NamedTuple):
    """One metric.

    Attributes:
        name: As `GET /metrics` shows it.
        type: `counter`, `gauge` or `histogram`.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    description: str


class Metrics:
    """The metrics of one gateway replica, and of its process.

    A metric's labels are looked up in a cache of our own: the library makes texts of their values and takes a lock at
    each look-up, which takes twice as long as counting. So there must be few sets of values.
    """

    def __init__(self) -> None:
        self.declared: list[Declared] = []
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def counter(self, name: str, description: str, *labels: str) -> Callable[..., Counter]:
        """Returns a function that returns the counter of the labels' values; there is at least one label."""
        self.declared.append(Declared(name, "counter", labels, description))
        return cache(Counter(name, description, labels, registry=self._registry).labels)

    def histogram(self, name: str, description: str, buckets: Sequence[float], *labels: str) -> Callable[..., None]:
        """Returns what counts a number under the labels' values. Buckets are upper bounds, inclusive.

        Every request counts in some: without the library's locks and checks that takes a third of the time.
        """
        self.declared.append(Declared(name, "histogram", labels, description))
        rows: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * (len(buckets) + 2))

        def observe(number: float, values: tuple[str, ...] = ()) -> None:
            row = rows[values]
            row[bisect_left(buckets, number)] += 1
            row[-1] += number

        self._registry.register(_Histogram(name, description, labels, buckets, rows))
        return observe

    def tally(self, name: str, description: str, *labels: str) -> dict[tuple[str, ...], int]:
        """Returns a number for each set of the labels' values, to be added to; it becomes a counter at a scrape.

        For what every request counts: without the library's lock and checks, that takes a fifth of the time.
        """
        numbers: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self.read("counter", name, description, labels, lambda: list(numbers.items()))
        return numbers

    def read(
        self, kind: Literal["counter", "gauge"], name: str, description: str, labels: Sequence[str], reading: Reading
    ) -> None:
        """Shows what is read at each scrape."""
        self.declared.append(Declared(name, kind, tuple(labels), description))
        self._registry.register(_Read(kind, name, description, labels, reading))

    def collect(self, names: frozenset[str]) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yields the samples of some metrics: name, labels, number."""
        for family in self._registry.collect():
            if (f"{family.name}_total" if family.type == "counter" else family.name) in names:
                yield from ((sample.name, sample.labels, sample.value) for sample in family.samples)

    def exposition(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Histogram(Collector):
    """Shows rows: how many numbers are in each bucket and above all, and the sum of the numbers."""

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        rows: Mapping[tuple[str, ...], Sequence[float]],
    ) -> None:
        self._family = partial(HistogramMetricFamily, name, description, labels=labels)
        self._bounds = [*map(floatToGoString, buckets), "+Inf"]
        self._rows = rows

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, (*counts, total) in list(self._rows.items()):
            family.add_metric(values, [*zip(self._bounds, accumulate(counts), strict=True)], total)
        return [family]


class _Read(Collector):
    def __init__(self, kind: str, name: str, description: str, labels: Sequence[str], reading: Reading) -> None:
        self._family = partial(_FAMILIES[kind], name, description, labels=labels)
        self._reading = reading

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, number in self._reading():
            family.add_metric(values, number)
        return [family]
