"""Spans with OpenTelemetry, whose exporters follow the standard OTEL_* variables and are off by default; metrics.

Without an exporter there are no spans: even the API's own no-op ones cost 10 microseconds each. The client's W3C
headers then reach the engine as they came. Metrics are always kept, and scraped from `GET /metrics`.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Thread
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind

from serve.config.gateway import TelemetryConfig
from serve.telemetry.metrics import Metrics
from serve.telemetry.request_log import RequestLog
from serve.telemetry.spans import Attribute, child_span, exporter_name, server_span, span_exporter

log = logging.getLogger("ray.serve.specgate.telemetry")

NO_SPAN = nullcontext(trace.INVALID_SPAN)
_DEFAULTS = TelemetryConfig()
_NOTHING: Mapping[str, Attribute] = MappingProxyType({})
_ANSWER_LABELS = ("model", "pool", "speculative", "request_class")
_DURATION_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Telemetry:
    """The tracer and the metrics of one gateway replica; no label has more values than the configuration has names.

    Tests give an exporter in place of the one that configuration and environment name.

    Attributes:
        metrics: All of them; other parts of the replica add theirs.
        traced: True if there are spans at all.
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
        exporter = spans or span_exporter(exporter_name(environ, endpoint), endpoint)
        self._provider: TracerProvider | None = None
        if exporter is not None:
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        tracers = (
            self._provider or trace.get_tracer_provider()
        )  # Ray Serve's own tracing installs one for the whole process
        self.traced = isinstance(tracers, TracerProvider)
        self._tracer = tracers.get_tracer("specgate")
        if environ.get("OTEL_METRICS_EXPORTER", "none").strip().lower() not in ("none", "prometheus"):
            log.warning("OTEL_METRICS_EXPORTER has no effect: have a collector scrape /metrics of the admin API")
        self.metrics = metrics = Metrics()
        self._requests = metrics.tally(
            "specgate_requests_total", "Requests by model, pool, speculation and outcome", "model", "pool",
            "speculative", "status",
        )  # fmt: skip
        self._errors = metrics.counter(
            "specgate_errors_total", "Requests that failed, by model, HTTP status and cause", "model", "status", "cause"
        )  # fmt: skip
        # Tokens and seconds by labels, read at a scrape: two counters with a lock each would cost every request more.
        self._answers: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        metrics.read(
            "counter", "specgate_answer_tokens_total", "Tokens of answers whose engine reported their number",
            _ANSWER_LABELS, partial(self._each_answer, 0),
        )  # fmt: skip
        metrics.read(
            "counter", "specgate_answer_seconds_total",
            "Time of the same answers, from sending the request to their end",
            _ANSWER_LABELS, partial(self._each_answer, 1),
        )  # fmt: skip
        self._duration = metrics.histogram(
            "specgate_request_duration_seconds", "From the request to the last byte", _DURATION_BUCKETS_S, "model",
            "pool", "speculative", "status",
        )  # fmt: skip
        self._first_token = metrics.histogram(
            "specgate_time_to_first_token_seconds", "From the request to the first byte of a streamed answer",
            _DURATION_BUCKETS_S, "model", "pool",
        )  # fmt: skip
        self._slot_wait = metrics.histogram(
            "specgate_slot_wait_seconds", "Time for a slot, of the requests that waited over 1 ms for one",
            _DURATION_BUCKETS_S, "model", "pool", "priority",
        )  # fmt: skip
        self._retries = metrics.counter(
            "specgate_retries_total",
            "Attempts that failed, or found no slot, before the first byte, and were followed by another",
            "pool",
        )
        self._decisions = metrics.tally(
            "specgate_decisions_total", "Requests by the reasons of their decision; empty without one", "model",
            "pool", "reason",
        )  # fmt: skip
        self._history = metrics.counter(
            "specgate_history_malformed_total", "Malformed calls of earlier turns", "model", "mode", "kind"
        )  # fmt: skip

    def request(self, path: str, headers: Mapping[str, str], *, continued: bool = True) -> AbstractContextManager[Span]:
        """Returns the span of one request; the arguments are those of `server_span`."""
        return server_span(self._tracer, path, headers, continued=continued) if self.traced else NO_SPAN

    def step(
        self, name: str, attributes: Mapping[str, Attribute] = _NOTHING, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Span]:
        """Returns a child span; the arguments are those of `child_span`."""
        return child_span(self._tracer, name, attributes, kind) if self.traced else NO_SPAN

    def first_token(self, arrived_s: float, model: str, pool: str) -> float:
        """Records that the first bytes of a stream are on their way; returns the seconds that it took. `arrived_s` is
        by the monotonic clock.
        """
        waited_s = time.monotonic() - arrived_s
        self._first_token(waited_s, (model, pool))
        return waited_s

    def answered(
        self, model: str, pool: str, speculative: str, request_class: str, tokens: int, seconds: float
    ) -> None:
        """Records how fast an engine has answered, from sending the request to the end of the answer."""
        sums = self._answers[model, pool, speculative, request_class]
        sums[0] += tokens
        sums[1] += seconds

    def tokens_answered(self) -> dict[tuple[str, str], float]:
        """Returns the tokens of all answers whose engine reported their number, by model and pool."""
        totals: dict[tuple[str, str], float] = {}
        for (model, pool, *_), sums in self._answers.items():
            totals[model, pool] = totals.get((model, pool), 0.0) + sums[0]
        return totals

    def _each_answer(self, number: int) -> Iterator[tuple[Sequence[str], float]]:
        return ((labels, sums[number]) for labels, sums in self._answers.items())

    def waited(self, waited_s: float, model: str, pool: str, priority: str) -> None:
        self._slot_wait(waited_s, (model, pool, priority))

    def retried(self, pool: str) -> None:
        """Counts an attempt that is repeated before the first byte."""
        self._retries(pool).inc()

    def decided(self, model: str, pool: str, reasons: Sequence[str]) -> None:
        """Counts a decision under each of its reasons, or under none. The pool is the first candidate's, or empty if
        every pool is forbidden.
        """
        for reason in reasons or ("",):
            self._decisions[model, pool, reason] += 1

    def ended(self, arrived_s: float, model: str, pool: str, speculative: str, status: int) -> None:
        """Records that a request is over. Model and pool may be empty; `speculative` is `on` or `off`."""
        labels = (model, pool, speculative, str(status))
        self._requests[labels] += 1
        self._duration(time.monotonic() - arrived_s, labels)

    def failed(self, model: str, status: int, cause: str) -> None:
        """Counts a request that failed. The model is empty if none was found; the cause is the code of our error, or
        `engine` if the engine refused.
        """
        self._errors(model, str(status), cause).inc()

    def history(self, model: str, mode: str, arguments: int, ids: int) -> None:
        """Counts malformed calls in the earlier turns of a conversation. The mode is `fix` if they were repaired,
        `warn` if they were only counted.
        """
        for kind, count in (("arguments", arguments), ("id", ids)):
            if count:
                self._history(model, mode, kind).inc(count)

    def shutdown(self, patience_s: float = 3.0) -> None:
        """Sends the last spans; what a collector does not take in time is lost, as it may be gone."""
        self.log.close()
        if self._provider is not None:
            sending = Thread(target=self._provider.shutdown, daemon=True)  # OpenTelemetry itself would wait for 30 s
            sending.start()
            sending.join(patience_s)
