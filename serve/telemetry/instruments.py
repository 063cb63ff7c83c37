"""Spans and metrics by OpenTelemetry; exporters by the standard OTEL_* environment, off unless one is named.

With no exporter configured there are no spans: even the API's own no-op ones cost 10 microseconds each. The client's
W3C headers then reach the engine as they came. Metrics are always kept for `GET /metrics`.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from serve.telemetry.counter import Count
from serve.telemetry.exporters import _metric_reader, _span_exporter, exporter_name

_NO_SPAN = nullcontext(trace.INVALID_SPAN)


_DURATION_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Instruments:
    """The gateway's metrics; every label set is bounded by the configuration, not by what clients send."""

    requests: Count
    duration: metrics.Histogram
    first_token: metrics.Histogram
    retries: Count
    history: Count


class Telemetry:
    """The tracer and the instruments of one gateway replica.

    Attributes:
        meter: For instruments of others.

    Args:
        spans: Where spans go, in place of what the environment names (tests).
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, spans: SpanExporter | None = None) -> None:
        resource = Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME", "specgate")})
        exporter = spans or _span_exporter(exporter_name("TRACES", environ))
        self._provider: TracerProvider | None = None
        if exporter is not None:
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        tracers = self._provider or trace.get_tracer_provider()  # Ray Serve's own tracing installs one for all
        self._traced = isinstance(tracers, TracerProvider)
        self._tracer = tracers.get_tracer("specgate")
        readers = (PrometheusMetricReader(), _metric_reader(exporter_name("METRICS", environ)))
        self._meters = MeterProvider(metric_readers=[reader for reader in readers if reader], resource=resource)
        meter = self.meter = self._meters.get_meter("specgate")
        self.instruments = Instruments(
            requests=Count(
                meter, "specgate.requests", "Requests by model, pool, speculation and outcome",
                "model", "pool", "speculative", "status",
            ),
            duration=meter.create_histogram(
                "specgate.request.duration", "s", "From the request to the last byte",
                explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
            ),
            first_token=meter.create_histogram(
                "specgate.time_to_first_token", "s", "From the request to the first byte of a streamed answer",
                explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
            ),
            retries=Count(meter, "specgate.retries", "Attempts repeated before the first byte", "pool"),
            history=Count(
                meter, "specgate.history.malformed", "Calls of earlier turns at fault", "model", "mode", "kind"
            ),
        )  # fmt: skip

    def request(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """The span of one request, under the client's trace context if it sent one."""
        return self._server_span(name, headers) if self._traced else _NO_SPAN

    def step(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        """A child span."""
        return self._tracer.start_as_current_span(name, attributes=attributes) if self._traced else _NO_SPAN

    @contextmanager
    def _server_span(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        token = context.attach(propagate.extract(headers))
        try:
            with self._tracer.start_as_current_span(name, kind=SpanKind.SERVER) as span:
                yield span
        finally:
            context.detach(token)

    def first_token(self, arrived: float, pool: str) -> None:
        """Note that the first bytes of a stream are on their way.

        Args:
            arrived: When the request came, by the monotonic clock.
            pool: Whose stream it is.
        """
        self.instruments.first_token.record(time.monotonic() - arrived, {"pool": pool})

    def ended(self, arrived: float, model: str, pool: str, speculative: str, status: int) -> None:
        """Note that a request is over.

        Args:
            arrived: When it came, by the monotonic clock.
            model: Empty if none was found, as the pool.
            pool: Who served it.
            speculative: `on` or `off`.
            status: Of the answer.
        """
        labels = {"model": model, "pool": pool, "speculative": speculative, "status": str(status)}
        self.instruments.requests.add(*labels.values())
        self.instruments.duration.record(time.monotonic() - arrived, labels)

    def history(self, model: str, mode: str, arguments: int, ids: int) -> None:
        """Count what was wrong with the calls of a conversation's earlier turns; `mode` tells whether it was mended."""
        for kind, count in (("arguments", arguments), ("id", ids)):
            if count:
                self.instruments.history.add(model, mode, kind, count=count)

    def shutdown(self) -> None:
        """Send what is still buffered."""
        if self._provider is not None:
            self._provider.shutdown()
        self._meters.shutdown()


def inject(headers: dict[str, str]) -> None:
    """Put the current trace context into request headers for the engine; without one, the client's stays in them."""
    if trace.get_current_span() is not trace.INVALID_SPAN:
        propagate.inject(headers)


def fail(span: Span, message: str) -> None:
    """Mark a span as failed without an exception passing through it."""
    span.set_status(Status(StatusCode.ERROR, message))
