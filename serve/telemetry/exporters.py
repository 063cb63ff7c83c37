"""Exporters by the standard OTEL_* environment."""

from collections.abc import Mapping

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter


def exporter_name(signal: str, environ: Mapping[str, str]) -> str:
    """Which exporter the environment asks for: `otlp`, `console` or `none`.

    OpenTelemetry's own default is `otlp` to localhost; ours is `none` unless an endpoint is named, since a gateway
    that retries against a collector that is not there is noise.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    named = environ.get(f"OTEL_{signal}_EXPORTER")
    if named:
        return named.strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return "otlp" if any(environ.get(name) for name in endpoints) else "none"


def _span_exporter(name: str) -> SpanExporter | None:
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter()
        case "console":
            return ConsoleSpanExporter()
        case "none":
            return None
    raise ValueError(f"OTEL_TRACES_EXPORTER={name!r} is not supported; use otlp, console or none")


def _metric_reader(name: str) -> MetricReader | None:
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            return PeriodicExportingMetricReader(OTLPMetricExporter())
        case "console":
            return PeriodicExportingMetricReader(ConsoleMetricExporter())
        case "none" | "prometheus":
            return None
    raise ValueError(f"OTEL_METRICS_EXPORTER={name!r} is not supported; use otlp, console, prometheus or none")
