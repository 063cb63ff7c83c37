"""Exporters of spans, as the standard OTEL_* variables name them."""

from collections.abc import Mapping

from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter


def exporter_name(environ: Mapping[str, str], endpoint: str | None = None) -> str:
    """Returns the exporter of spans that the environment asks for, such as `otlp`, `console` or `none`.

    OpenTelemetry's own default is `otlp` to localhost. Ours is `none` unless an endpoint is named: a gateway that
    retries against a collector that does not exist only makes noise.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    named = environ.get("OTEL_TRACES_EXPORTER")
    if named:
        return named.strip().lower()
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return "otlp" if endpoint or any(environ.get(name) for name in variables) else "none"


def span_exporter(name: str, endpoint: str | None = None) -> SpanExporter | None:
    """Returns the exporter of that name; None for `none`. Without an endpoint, `otlp` sends where the OTEL_* variables
    say.

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
