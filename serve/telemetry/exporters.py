"""Exporters as the standard OTEL_* variables name them."""

from collections.abc import Mapping

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter


def exporter_name(signal: str, environ: Mapping[str, str]) -> str:
    """Returns the exporter that the environment asks for, such as `otlp`, `console` or `none`.

    OpenTelemetry's own default is `otlp` to localhost. Ours is `none` unless an endpoint is named: a gateway that
    retries against a collector that does not exist only makes noise.

    Args:
        signal: `TRACES` or `METRICS`.
        environ: The OTEL_* variables.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    named = environ.get(f"OTEL_{signal}_EXPORTER")
    if named:
        return named.strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return "otlp" if any(environ.get(name) for name in endpoints) else "none"


def span_exporter(name: str) -> SpanExporter | None:
    """Returns the exporter of that name; None for `none`.

    Raises:
        ValueError: There is no such exporter.
    """
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter()
        case "console":
            return ConsoleSpanExporter()
        case "none":
            return None
    raise ValueError(f"OTEL_TRACES_EXPORTER={name!r} is not supported; use otlp, console or none")


def metric_reader(name: str) -> MetricReader | None:
    """Returns a reader that exports under that name; None for `none` and `prometheus`, which needs none.

    Raises:
        ValueError: There is no such exporter.
    """
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            return PeriodicExportingMetricReader(OTLPMetricExporter())
        case "console":
            return PeriodicExportingMetricReader(ConsoleMetricExporter())
        case "none" | "prometheus":
            return None
    raise ValueError(f"OTEL_METRICS_EXPORTER={name!r} is not supported; use otlp, console, prometheus or none")
