"""Counters that cost a dictionary's entry: OpenTelemetry asks for their sums when it collects.

Its own `Counter.add` takes several microseconds a call, most of them for the labels, which are the same few every time.
"""

from collections import Counter
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class Count:
    """One counter.

    Args:
        meter: Exports it.
        name: Of the metric.
        description: Of what it counts.
        labels: Names of its labels; the sets of values must be few, as every one is kept.
    """

    def __init__(self, meter: Meter, name: str, description: str, *labels: str) -> None:
        self._labels = labels
        self._sums: Counter[tuple[str, ...]] = Counter()
        meter.create_observable_counter(name, [self._observe], "1", description)

    def add(self, *values: str, count: int = 1) -> None:
        """Count; `values` are those of the labels, in their order."""
        self._sums[values] += count

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        for values, count in self._sums.copy().items():  # collected in another thread than counted
            yield Observation(count, dict(zip(self._labels, values, strict=True)))
