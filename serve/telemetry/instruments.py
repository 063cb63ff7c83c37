"""Spans and metrics with OpenTelemetry; exporters follow the standard OTEL_* variables, and are off by default.

Without an exporter there are no spans: even the API's own no-op ones cost 10 microseconds each. The client's W3C
headers then reach the engine as they came. Metrics are always kept for `GET /metrics`.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from serve.telemetry.exporters import exporter_name, metric_reader, span_exporter

_NO_SPAN = nullcontext(trace.INVALID_SPAN)
_DURATION_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class LabelledCounter:
    """A counter that costs one dictionary entry per call; OpenTelemetry asks for the sums when it collects.

    OpenTelemetry's own `Counter.add` takes several microseconds a call, most of them for the labels, which are the same
    few every time.

    Args:
        meter: Exports the counter.
        name: The metric's name.
        description: What is counted.
        labels: Names of the labels; there must be few sets of values, because every one is kept.
    """

    def __init__(self, meter: Meter, name: str, description: str, *labels: str) -> None:
        self._labels = labels
        self._sums: Counter[tuple[str, ...]] = Counter()
        meter.create_observable_counter(name, [self._observe], "1", description)

    def add(self, *values: str, count: int = 1) -> None:
        """Adds to the sum of the labels' `values`, given in the order of the labels."""
        self._sums[values] += count

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        for values, count in self._sums.copy().items():  # collected in another thread than counted
            yield Observation(count, dict(zip(self._labels, values, strict=True)))


@dataclass(frozen=True, slots=True)
class Instruments:
    """The gateway's metrics; every label set is bounded by the configuration, not by what clients send."""

    requests: LabelledCounter
    duration: metrics.Histogram
    first_token: metrics.Histogram
    slot_wait: metrics.Histogram
    retries: LabelledCounter
    decisions: LabelledCounter
    history: LabelledCounter


class Telemetry:
    """The tracer and the instruments of one gateway replica.

    Attributes:
        meter: Makes further instruments.

    Args:
        environ: The OTEL_* variables.
        spans: Exports spans in place of the exporter that the environment names; for tests.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, spans: SpanExporter | None = None) -> None:
        resource = Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME", "specgate")})
        exporter = spans or span_exporter(exporter_name("TRACES", environ))
        self._provider: TracerProvider | None = None
        if exporter is not None:
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        tracers = (
            self._provider or trace.get_tracer_provider()
        )  # Ray Serve's own tracing installs one for the whole process
        self._traced = isinstance(tracers, TracerProvider)
        self._tracer = tracers.get_tracer("specgate")
        readers = (PrometheusMetricReader(), metric_reader(exporter_name("METRICS", environ)))
        self._meters = MeterProvider(metric_readers=[reader for reader in readers if reader], resource=resource)
        self.meter = self._meters.get_meter("specgate")
        meter = self.meter
        self.instruments = Instruments(
            requests=LabelledCounter(
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
            slot_wait=meter.create_histogram(
                "specgate.slot.wait", "s", "Time for a slot, of the requests that waited over 1 ms for one",
                explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
            ),
            retries=LabelledCounter(meter, "specgate.retries", "Attempts repeated before the first byte", "pool"),
            decisions=LabelledCounter(
                meter, "specgate.decisions", "Requests by the reasons of their decision; empty without one",
                "model", "pool", "reason",
            ),
            history=LabelledCounter(
                meter, "specgate.history.malformed", "Calls of earlier turns at fault", "model", "mode", "kind"
            ),
        )  # fmt: skip

    def request(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Returns the span of one request, under the client's trace context if it sent one."""
        return self._server_span(name, headers) if self._traced else _NO_SPAN

    def step(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        """Returns a child span."""
        return self._tracer.start_as_current_span(name, attributes=attributes) if self._traced else _NO_SPAN

    @contextmanager
    def _server_span(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        token = context.attach(propagate.extract(headers))
        try:
            with self._tracer.start_as_current_span(name, kind=SpanKind.SERVER) as span:
                yield span
        finally:
            context.detach(token)

    def first_token(self, arrived_s: float, model: str, pool: str) -> None:
        """Records that the first bytes of a stream are on their way.

        Args:
            arrived_s: When the request arrived, by the monotonic clock.
            model: The model's own name.
            pool: The pool that streams.
        """
        self.instruments.first_token.record(time.monotonic() - arrived_s, {"model": model, "pool": pool})

    def waited(self, waited_s: float, model: str, pool: str) -> None:
        """Records that a request waited for a slot.

        Args:
            waited_s: How long.
            model: The model's own name.
            pool: The pool that had a slot.
        """
        self.instruments.slot_wait.record(waited_s, {"model": model, "pool": pool})

    def decided(self, model: str, pool: str, reasons: Sequence[str]) -> None:
        """Counts a decision under each of its reasons, or under none.

        Args:
            model: The model's own name.
            pool: The first candidate; empty if every pool is forbidden.
            reasons: Ids of advisories, and the other names of reasons.
        """
        for reason in reasons or ("",):
            self.instruments.decisions.add(model, pool, reason)

    def ended(self, arrived_s: float, model: str, pool: str, speculative: str, status: int) -> None:
        """Records that a request is over.

        Args:
            arrived_s: When the request arrived, by the monotonic clock.
            model: Empty if none was found.
            pool: The pool that served it; empty if none did.
            speculative: `on` or `off`.
            status: The response's HTTP status.
        """
        labels = {"model": model, "pool": pool, "speculative": speculative, "status": str(status)}
        self.instruments.requests.add(*labels.values())
        self.instruments.duration.record(time.monotonic() - arrived_s, labels)

    def history(self, model: str, mode: str, arguments: int, ids: int) -> None:
        """Counts malformed calls in the earlier turns of a conversation.

        Args:
            model: The model's own name.
            mode: `fix` if they were repaired, `warn` if they were only counted.
            arguments: Calls with malformed arguments.
            ids: Calls with malformed ids.
        """
        for kind, count in (("arguments", arguments), ("id", ids)):
            if count:
                self.instruments.history.add(model, mode, kind, count=count)

    def shutdown(self) -> None:
        """Sends what is still buffered."""
        if self._provider is not None:
            self._provider.shutdown()
        self._meters.shutdown()


def inject(headers: dict[str, str]) -> None:
    """Puts the current trace context into request headers for the engine; without one, the client's stays there."""
    if trace.get_current_span() is not trace.INVALID_SPAN:
        propagate.inject(headers)


def fail(span: Span, message: str) -> None:
    """Marks a span as failed without an exception passing through it."""
    span.set_status(Status(StatusCode.ERROR, message))
