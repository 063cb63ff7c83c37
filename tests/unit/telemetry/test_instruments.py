"""The OTEL_* environment: what it switches on, and that nothing is spent when it is empty."""

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import ValidationError

from serve.config.gateway import TelemetryConfig
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import exporter_name


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "none"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "Console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "none"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, "none"),
    ],
)
def test_the_exporter_follows_the_standard_environment(environ: dict[str, str], name: str) -> None:
    assert exporter_name(environ) == name


@pytest.mark.parametrize(
    ("environ", "traced"),
    [({}, True), ({"OTEL_TRACES_EXPORTER": "none"}, False), ({"OTEL_SDK_DISABLED": "true"}, False)],
)
def test_a_configured_endpoint_switches_spans_on_unless_the_environment_forbids_it(
    environ: dict[str, str], traced: bool
) -> None:
    config = TelemetryConfig(traces_endpoint="http://127.0.0.1:9/v1/traces")
    telemetry = Telemetry(environ, config=config)
    assert telemetry.traced is traced
    telemetry.shutdown()


def test_a_collector_that_takes_no_spans_holds_up_no_end() -> None:
    answers = threading.Event()

    class Silent(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            answers.wait()
            return SpanExportResult.FAILURE

    telemetry = Telemetry({}, spans=Silent())
    with telemetry.step("a request"):
        pass
    telemetry.shutdown(patience_s=0.05)
    assert not answers.is_set()
    answers.set()


def test_an_endpoint_without_a_path_is_refused() -> None:
    with pytest.raises(ValidationError):
        TelemetryConfig(traces_endpoint="http://collector:4318")


def test_an_unknown_exporter_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match="use otlp, console or none"):
        Telemetry({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_without_an_exporter_there_are_no_spans() -> None:
    telemetry = Telemetry({})
    assert not telemetry.traced
    with telemetry.request("/p", {}) as span, telemetry.step("s") as step:
        assert not span.is_recording()
        assert not step.is_recording()


def test_metrics_that_were_pushed_are_scraped_instead_which_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    Telemetry({"OTEL_METRICS_EXPORTER": "none"})
    assert not caplog.records
    Telemetry({"OTEL_METRICS_EXPORTER": "otlp"})
    assert "have a collector scrape /metrics" in caplog.text
