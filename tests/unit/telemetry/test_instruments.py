"""The OTEL_* environment: what it switches on, and that nothing is spent when it is empty."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serve.telemetry.exporters import exporter_name
from serve.telemetry.instruments import Telemetry, inject


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
    assert exporter_name("TRACES", environ) == name


def test_an_unknown_exporter_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match="use otlp, console or none"):
        Telemetry({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_without_an_exporter_the_clients_context_stays_as_it_came() -> None:
    telemetry = Telemetry({})
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": traceparent}
    with telemetry.request("r", headers) as span, telemetry.step("s"):
        assert not span.is_recording()
        inject(headers)
    assert headers == {"traceparent": traceparent}


def test_steps_are_children_of_the_request() -> None:
    spans = InMemorySpanExporter()
    telemetry = Telemetry({}, spans)
    with telemetry.request("r", {}), telemetry.step("s", pool="p"):
        pass
    telemetry.shutdown()
    step, request = spans.get_finished_spans()
    assert step.parent is not None
    assert step.parent.span_id == request.context.span_id
    assert dict(step.attributes or {}) == {"pool": "p"}
