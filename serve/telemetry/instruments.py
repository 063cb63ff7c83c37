"""Spans and metrics with OpenTelemetry; exporters follow the standard OTEL_* variables, and are off by default.

Without an exporter there are no spans: even the API's own no-op ones cost 10 microseconds each. The client's W3C
headers then reach the engine as they came. Metrics are always kept for `GET /metrics`.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind

from serve.config.telemetry import TelemetryConfig
from serve.telemetry.exporters import exporter_name, metric_reader, span_exporter
from serve.telemetry.histogram import SCOPE, LabelledHistogram, PeriodicReader, PrometheusReader
from serve.telemetry.request_log import RequestLog
from serve.telemetry.spans import Attribute, child_span, server_span

NO_SPAN = nullcontext(trace.INVALID_SPAN)
_DEFAULTS = TelemetryConfig()
_NOTHING: Mapping[str, Attribute] = MappingProxyType({})
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
    duration: LabelledHistogram
    first_token: LabelledHistogram
    slot_wait: LabelledHistogram
    retries: LabelledCounter
    decisions: LabelledCounter
    history: LabelledCounter


class Telemetry:
    """The tracer and the instruments of one gateway replica.

    Attributes:
        meter: Makes further instruments.
        traced: True if there are spans at all.
        log: What the log says of requests.

    Args:
        environ: The OTEL_* variables.
        spans: Exports spans in place of the exporter that configuration and environment name; for tests.
        config: Where spans go, if not where the environment says; what is logged.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        spans: SpanExporter | None = None,
        config: TelemetryConfig = _DEFAULTS,
    ) -> None:
        self.log = RequestLog(config)
        resource = Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME", "specgate")})
        endpoint = config.traces_endpoint
        exporter = spans or span_exporter(exporter_name("TRACES", environ, endpoint), endpoint)
        self._provider: TracerProvider | None = None
        if exporter is not None:
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        tracers = (
            self._provider or trace.get_tracer_provider()
        )  # Ray Serve's own tracing installs one for the whole process
        self.traced = isinstance(tracers, TracerProvider)
        self._tracer = tracers.get_tracer("specgate")
        exported = metric_reader(exporter_name("METRICS", environ))
        readers: list[PrometheusReader | PeriodicReader] = [PrometheusReader()]
        if exported is not None:
            readers.append(exported)
        self._meters = MeterProvider(metric_readers=readers, resource=resource)
        self.meter = self._meters.get_meter(SCOPE)
        meter = self.meter
        self.instruments = Instruments(
            requests=LabelledCounter(
                meter, "specgate.requests", "Requests by model, pool, speculation and outcome",
                "model", "pool", "speculative", "status",
            ),
            duration=LabelledHistogram(
                "specgate.request.duration", "s", "From the request to the last byte", _DURATION_BUCKETS_S,
                "model", "pool", "speculative", "status",
            ),
            first_token=LabelledHistogram(
                "specgate.time_to_first_token", "s", "From the request to the first byte of a streamed answer",
                _DURATION_BUCKETS_S, "model", "pool",
            ),
            slot_wait=LabelledHistogram(
                "specgate.slot.wait", "s", "Time for a slot, of the requests that waited over 1 ms for one",
                _DURATION_BUCKETS_S, "model", "pool", "priority",
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
        instruments = self.instruments
        for reader in readers:
            reader.histograms = (instruments.duration, instruments.first_token, instruments.slot_wait)

    def request(self, path: str, headers: Mapping[str, str], *, continued: bool = True) -> AbstractContextManager[Span]:
        """Returns the span of one request; the arguments are those of `server_span`."""
        return server_span(self._tracer, path, headers, continued=continued) if self.traced else NO_SPAN

    def step(
        self, name: str, attributes: Mapping[str, Attribute] = _NOTHING, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Span]:
        """Returns a child span; the arguments are those of `child_span`."""
        return child_span(self._tracer, name, attributes, kind) if self.traced else NO_SPAN

    def first_token(self, arrived_s: float, model: str, pool: str) -> None:
        """Records that the first bytes of a stream are on their way.

        Args:
            arrived_s: When the request arrived, by the monotonic clock.
            model: The model's own name.
            pool: The pool that streams.
        """
        self.instruments.first_token.record(time.monotonic() - arrived_s, model, pool)

    def waited(self, waited_s: float, model: str, pool: str, priority: str) -> None:
        """Records that a request waited for a slot.

        Args:
            waited_s: How long.
            model: The model's own name.
            pool: The pool that had a slot.
            priority: The request's.
        """
        self.instruments.slot_wait.record(waited_s, model, pool, priority)

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
        labels = (model, pool, speculative, str(status))
        self.instruments.requests.add(*labels)
        self.instruments.duration.record(time.monotonic() - arrived_s, *labels)

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
        self.log.close()
        if self._provider is not None:
            self._provider.shutdown()
        self._meters.shutdown()
