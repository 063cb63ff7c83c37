"""What came of each attempt, and who is told: telemetry and quarantine, the attempt's span, and a trial.

Every attempt at a checked answer is counted once, when the request ends, if the guard has a verdict on it. Whether it
counts against its pool says the verdict (`Verdict.counts`); what a trial found, `finding.py`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from opentelemetry import trace
from opentelemetry.trace import Span

from policies import Candidate, Trial
from serve.guard.core import GUARD_ERROR, Guard, Outcome, Verdict
from serve.guard.finding import TrialFinding, finding_of
from serve.proxy.routed_request import RoutedRequest
from serve.telemetry.instruments import Telemetry
from serve.telemetry.request_log import log_fault
from serve.telemetry.spans import Attribute, fail

log = logging.getLogger("ray.serve.specgate.guard")

Found = Callable[[Trial, TrialFinding], None]
_BUSY = 429
_REFUSED = Verdict(Outcome.UNJUDGED, counts=False)  # a request that the engine refused, which is the client's fault
# OpenTelemetry's names. The Python package has them only in a private module, deprecated without a public successor.
_EVENT = "gen_ai.evaluation.result"
_EVALUATION = "specgate.answer_integrity"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One engine's response and what became of it.

    There is no result for an attempt that was cut short because the client left, nor for an engine's refusal (any
    status but 200). A response that `length` cut has one, but its `verdict.counts` is False.

    Attributes:
        model: The model's own name in the configuration.
        pool: The pool that responded.
        request_class: As a class expression, such as `tools_auto` or `tools_auto+json_schema+strict+thinking`.
        speculative: Whether that pool speculated for this request.
        verdict: The guard's verdict; `verdict.outcome` is never `rerun`, and `failed` only if the engine itself failed.
        attempt: 0 for the first attempt, 1 for the first rerun.
        final: What the client got, if this was the last attempt: `clean`, `rescued`, `rerun` (an earlier attempt was
            broken, this one was not), `failed` (an error), or what is still wrong with it. None if a rerun follows.
        request_id: The request's `x-request-id`.
        response_id: The response's own id, such as `chatcmpl-...`; empty if it had none.
    """

    model: str
    pool: str
    request_class: str
    speculative: bool
    verdict: Verdict
    attempt: int
    final: Outcome | None
    request_id: str
    response_id: str


class ResultSink(Protocol):
    """Takes attempt results; called on the request path, in the request's span: it must be quick and never raise."""

    def __call__(self, result: AttemptResult) -> None:
        """Counts one result."""
        ...


class Reports:
    """Tells what came of requests.

    Args:
        telemetry: Says whether there are spans.
        sink: Gets the result of every attempt.
        found: Gets what came of every trial.
    """

    def __init__(self, telemetry: Telemetry, sink: ResultSink, found: Found) -> None:
        self._telemetry = telemetry
        self._sink = sink
        self._found = found

    def evaluate(self, request: RoutedRequest, guard: Guard, candidate: Candidate, number: int) -> None:
        """Tells the span of an attempt, which is still open, what the guard found; nothing if it was cut short."""
        if self._telemetry.traced and number < len(guard.verdicts):
            evaluate(guard.verdicts[number], candidate, request.features.request_class, guard.response_id)

    def report(
        self,
        request: RoutedRequest,
        span: Span,
        guard: Guard,
        tried: Sequence[Candidate],
        *,
        settled: bool,
    ) -> None:
        """Reports every attempt that has a verdict; one that was cut short because the client left has none.

        Args:
            request: Of the client.
            span: Of the request.
            guard: Of its answer.
            tried: Where the attempts ran.
            settled: The answer has come to its end.
        """
        try:
            final = guard.outcome if settled and guard.verdicts else None
            request.attribution.near_copies = sum(verdict.near_copies for verdict in guard.verdicts)
            response_id = guard.response_id
            verdicts: Sequence[Verdict] = guard.verdicts
            self.conclude(request, tried, verdicts)
        except BaseException:  # noqa: BLE001 - the client's answer stands, whatever becomes of the report
            log_fault(log, "the guard's report failed", request.request_id)
            final, response_id, verdicts = Outcome.GUARD_ERROR, "", [GUARD_ERROR]
        self._send(request, span, verdicts, final, response_id, tried)

    def unguarded(self, request: RoutedRequest, span: Span, candidate: Candidate) -> None:
        """Reports that there is no guard for a response, because making it failed. Called in the handler."""
        log_fault(log, "the guard failed", request.request_id)
        self._send(request, span, [GUARD_ERROR], Outcome.GUARD_ERROR, "", [candidate])

    def unchecked(self, request: RoutedRequest, candidate: Candidate, status: int) -> None:
        """Reports a response in which there is nothing to check, since its status is not 200: no result counts it."""
        refused = 400 <= status < 500 and status != _BUSY
        self.conclude(request, [candidate] if refused else (), [_REFUSED])

    def conclude(self, request: RoutedRequest, tried: Sequence[Candidate], verdicts: Sequence[Verdict] = ()) -> None:
        """Says what came of the trial that a request is part of; arguments as of `finding_of`."""
        if request.decision.trial is not None:
            self._found(request.decision.trial, finding_of(request.decision.trial, tried, verdicts))

    def _send(
        self,
        request: RoutedRequest,
        span: Span,
        verdicts: Sequence[Verdict],
        final: Outcome | None,
        response_id: str,
        tried: Sequence[Candidate],
    ) -> None:
        if final is not None:
            span.set_attribute("specgate.guard.outcome", str(final))
        for number, (verdict, candidate) in enumerate(zip(verdicts, tried, strict=False)):
            self._sink(
                AttemptResult(
                    model=request.decision.model,
                    pool=candidate.pool,
                    request_class=request.features.request_class,
                    speculative=candidate.speculative,
                    verdict=verdict,
                    attempt=number,
                    final=final if number == len(verdicts) - 1 else None,
                    request_id=request.request_id,
                    response_id=response_id,
                )
            )


def evaluate(verdict: Verdict, candidate: Candidate, request_class: str, response_id: str) -> None:
    """Adds a verdict to the current span, which is that of the attempt, as OpenTelemetry's evaluation event.

    It marks the span if the answer is broken.

    Args:
        verdict: On the attempt.
        candidate: That answered.
        request_class: As a class expression.
        response_id: The answer's own id; empty if it had none.
    """
    span = trace.get_current_span()
    if not span.is_recording():
        return
    if not verdict.good:
        fail(span, str(verdict.outcome))
    span.set_attribute("specgate.outcome", str(verdict.outcome))
    span.add_event(_EVENT, _attributes(verdict, candidate, request_class, response_id))


def _attributes(verdict: Verdict, candidate: Candidate, request_class: str, response_id: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gen_ai.evaluation.name": _EVALUATION,
        "gen_ai.evaluation.score.value": 1.0 if verdict.good else 0.0,
        "gen_ai.evaluation.score.label": "pass" if verdict.good else "fail",
        "specgate.outcome": str(verdict.outcome),
        "specgate.pool": candidate.pool,
        "specgate.speculative": candidate.speculative,
        "specgate.request_class": request_class,
    }
    if verdict.defects:
        attributes["gen_ai.evaluation.explanation"] = verdict.shape
    if response_id:
        attributes["gen_ai.response.id"] = response_id
    return attributes
