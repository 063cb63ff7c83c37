"""Histograms of ours are exported as OpenTelemetry's own would be."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult, MetricsData
from prometheus_client import generate_latest

from serve.telemetry.histogram import LabelledHistogram, PeriodicReader, with_histograms
from serve.telemetry.instruments import Telemetry

BOUNDS = (0.1, 1.0, 10.0)
VALUES = st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0, 11.0, 1e6]), min_size=1, max_size=30)


def ours(values: Sequence[float]) -> LabelledHistogram:
    histogram = LabelledHistogram("wait", "s", "How long", BOUNDS, "pool")
    for value in values:
        histogram.record(value, "p")
    return histogram


@given(VALUES)
def test_it_tells_what_opentelemetrys_own_would(values: list[float]) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("specgate")
    theirs = meter.create_histogram("wait", "s", "How long", explicit_bucket_boundaries_advisory=BOUNDS)
    for value in values:
        theirs.record(value, {"pool": "p"})
    data = reader.get_metrics_data()
    assert data is not None
    (expected,) = data.resource_metrics[0].scope_metrics[0].metrics
    told = ours(values).collected()
    assert told is not None
    assert (told.name, told.unit, told.description) == (expected.name, expected.unit, expected.description)
    assert shape(told) == shape(expected)


def shape(metric: Any) -> Any:
    (point,) = metric.data.data_points
    numbers = (point.count, pytest.approx(point.sum), list(point.bucket_counts), list(point.explicit_bounds))
    return dict(point.attributes), numbers, (point.min, point.max), metric.data.aggregation_temporality


def test_one_without_values_is_not_exported() -> None:
    data = MetricsData([])
    assert ours([]).collected() is None
    assert with_histograms(data, [ours([])]) is data


def test_prometheus_sees_it_under_the_names_and_labels_of_before() -> None:
    telemetry = Telemetry({})
    telemetry.ended(0.0, "test-histogram", "p", "on", 200)
    text = generate_latest().decode()
    telemetry.shutdown()
    lines = [line for line in text.splitlines() if 'model="test-histogram"' in line and "duration" in line]
    assert any(line.startswith("specgate_request_duration_seconds_count{") and line.endswith(" 1.0") for line in lines)
    assert any(
        'le="+Inf"' in line and 'status="200"' in line and 'otel_scope_name="specgate"' in line for line in lines
    )


class Kept(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        scopes = [scope for resource in metrics_data.resource_metrics for scope in resource.scope_metrics]
        self.names |= {metric.name for scope in scopes for metric in scope.metrics}
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        pass


def test_an_exporter_gets_it_too() -> None:
    kept = Kept()
    reader = PeriodicReader(kept, export_interval_millis=float("inf"))
    reader.histograms = (ours([0.5]),)
    provider = MeterProvider([reader])
    provider.get_meter("specgate").create_counter("requests").add(1)
    provider.force_flush()
    assert kept.names == {"requests", "wait"}
    provider.shutdown()
