"""Exporters as the standard OTEL_* variables name them."""

from collections.abc import Mapping

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from serve.telemetry.histogram import PeriodicReader


def exporter_name(signal: str, environ: Mapping[str, str], endpoint: str | None = None) -> str:
    """Returns the exporter that the environment asks for, such as `otlp`, `console` or `none`.

    OpenTelemetry's own default is `otlp` to localhost. Ours is `none` unless an endpoint is named: a gateway that
    retries against a collector that does not exist only makes noise.

    Args:
        signal: `TRACES` or `METRICS`.
        environ: The OTEL_* variables.
        endpoint: That the configuration names.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    named = environ.get(f"OTEL_{signal}_EXPORTER")
    if named:
        return named.strip().lower()
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return "otlp" if endpoint or any(environ.get(name) for name in variables) else "none"


def span_exporter(name: str, endpoint: str | None = None) -> SpanExporter | None:
    """Returns the exporter of that name; None for `none`.

    Args:
        name: `otlp`, `console` or `none`.
        endpoint: Where `otlp` sends; if not given, where the OTEL_* variables say.

    Raises:
        ValueError: There is no such exporter.
    """
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(endpoint)
        case "console":
            return ConsoleSpanExporter()
        case "none":
            return None
    raise ValueError(f"OTEL_TRACES_EXPORTER={name!r} is not supported; use otlp, console or none")


def metric_reader(name: str) -> PeriodicReader | None:
    """Returns a reader that exports under that name; None for `none` and `prometheus`, which needs none.

    Raises:
        ValueError: There is no such exporter.
    """
    match name:
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            return PeriodicReader(OTLPMetricExporter())
        case "console":
            return PeriodicReader(ConsoleMetricExporter())
        case "none" | "prometheus":
            return None
    raise ValueError(f"OTEL_METRICS_EXPORTER={name!r} is not supported; use otlp, console, prometheus or none")
