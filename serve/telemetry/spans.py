"""Spans as OpenTelemetry's conventions have them, and their exporters.

None holds content: of a failure they have the kind alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from serve.errors import GatewayError

Attribute = str | bool | int | float | Sequence[str]

_SERVER_ERROR = 500
_TRACE_HEADERS = ("traceparent", "tracestate")
_BAGGAGE = "baggage"


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


@contextmanager
def server_span(tracer: Tracer, path: str, headers: Mapping[str, str], *, continued: bool) -> Iterator[Span]:
    """Opens the span of one POST; what is opened within becomes its child. A trace that is continued is the client's,
    whose choice of what is sampled counts too. Otherwise it is a new one with a link to the client's. Headers are by
    lower-case name.
    """
    if _BAGGAGE in headers:  # it has no use here, and OpenTelemetry logs what it can't read of it
        headers = {name: value for name, value in headers.items() if name != _BAGGAGE}
    client = propagate.extract(headers)
    theirs = trace.get_current_span(client).get_span_context()
    token = context.attach(client if continued else context.Context())
    try:
        with tracer.start_as_current_span(
            f"POST {path}",
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "http.route": path, "url.path": path, "url.scheme": "http"},
            links=[Link(theirs)] if theirs.is_valid and not continued else [],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span
    finally:
        context.detach(token)


@contextmanager
def child_span(
    tracer: Tracer, name: str, attributes: Mapping[str, Attribute], kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """Opens a child of the current span; an exception that passes through marks it as failed.

    OpenTelemetry would record the exception's text, in which a request or an answer may be quoted. There are few names:
    figures belong into the attributes. What goes over a connection is of kind `CLIENT`.
    """
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except GatewayError as error:
            fail(span, error.code, error.status)
            raise
        except Exception as error:
            fail(span, type(error).__name__)
            raise


def fail(span: Span, kind: str, status: int = _SERVER_ERROR) -> None:
    """Marks a span as failed, without an exception that passes through it. The kind is one word of few: the code of an
    error, or an outcome. With a status below 500 the fault is the client's, and the span is no failed one.
    """
    span.set_attribute("error.type", kind)
    if status >= _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def inject(headers: dict[str, str]) -> None:
    """Puts the current span into request headers for an engine, in place of the client's."""
    for name in _TRACE_HEADERS:  # the state of a trace that was not taken over must not stay
        headers.pop(name, None)
    propagate.inject(headers)


def without_trace(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns request headers without the trace that the client is in."""
    return {name: value for name, value in headers.items() if name not in _TRACE_HEADERS}
