"""Histograms that cost a request next to nothing, and the readers that export them.

OpenTelemetry's own `Histogram.record` takes some microseconds a call, most of them for labels that are the same few
every time, and it has no histogram that is observed only when somebody collects.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    PeriodicExportingMetricReader,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

SCOPE = "specgate"


@dataclass(slots=True)
class _Point:
    counts: list[int]  # one for each bound, and one for what lies above all of them
    sum: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")
    begun_ns: int = field(default_factory=time.time_ns)


class LabelledHistogram:
    """A histogram; `LabelledCounter`'s counterpart.

    Args:
        name: The metric's name.
        unit: Of what is recorded.
        description: What is recorded.
        bounds: Upper bounds of the buckets, inclusive.
        labels: Names of the labels; there must be few sets of values, because every one is kept.
    """

    def __init__(self, name: str, unit: str, description: str, bounds: Sequence[float], *labels: str) -> None:
        self._name = name
        self._unit = unit
        self._description = description
        self._bounds = bounds
        self._labels = labels
        self._points: dict[tuple[str, ...], _Point] = {}

    def record(self, value: float, *values: str) -> None:
        """Records a value under the labels' `values`, given in the order of the labels."""
        point = self._points.get(values)
        if point is None:
            point = self._points[values] = _Point([0] * (len(self._bounds) + 1))
        point.counts[bisect_left(self._bounds, value)] += 1
        point.sum += value
        point.least = min(point.least, value)
        point.most = max(point.most, value)

    def collected(self) -> Metric | None:
        """Returns what was recorded since the start; None if nothing was."""
        points = [self._exported(values, point) for values, point in self._points.copy().items()]
        if not points:
            return None
        return Metric(self._name, self._description, self._unit, Histogram(points, AggregationTemporality.CUMULATIVE))

    def _exported(self, values: tuple[str, ...], point: _Point) -> HistogramDataPoint:
        counts = point.counts.copy()  # collected in another thread than recorded
        labels = dict(zip(self._labels, values, strict=True))
        return HistogramDataPoint(
            labels,
            point.begun_ns,
            time.time_ns(),
            sum(counts),
            point.sum,
            counts,
            self._bounds,
            point.least,
            point.most,
        )


class _WithHistograms:
    """A reader that exports histograms of ours beside what OpenTelemetry collects.

    Attributes:
        histograms: All of them.
    """

    histograms: Sequence[LabelledHistogram] = ()

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **more: Any) -> None:
        data = with_histograms(metrics_data, self.histograms)
        super()._receive_metrics(data, timeout_millis=timeout_millis, **more)  # type: ignore[misc]


class PrometheusReader(_WithHistograms, PrometheusMetricReader):
    """For `GET /metrics`."""


class PeriodicReader(_WithHistograms, PeriodicExportingMetricReader):
    """For an exporter."""


def with_histograms(data: MetricsData, histograms: Iterable[LabelledHistogram]) -> MetricsData:
    """Returns collected metrics, and histograms as far as they have values."""
    found = [metric for histogram in histograms if (metric := histogram.collected()) is not None]
    if not found or not data.resource_metrics:
        return data
    first, *others = data.resource_metrics
    ours = ScopeMetrics(InstrumentationScope(SCOPE), found, "")
    return MetricsData([replace(first, scope_metrics=[*first.scope_metrics, ours]), *others])
