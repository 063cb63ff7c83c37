"""What came of each attempt, and who is told: metrics and quarantine, the attempt's span, and a trial.

Every attempt at a checked answer is counted once, when the request ends, if the guard has a verdict on it. The verdict
says whether it counts against its pool (`Verdict.counts`); `finding_of`, what a trial found.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span

from policies import Candidate, Trial
from serve.guard.core import GUARD_ERROR, Guard, Outcome, Severity, Verdict
from serve.proxy.routed_request import RoutedRequest
from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Metrics, Reading
from serve.telemetry.request_log import log_fault
from serve.telemetry.spans import Attribute, fail

log = logging.getLogger("ray.serve.specgate.guard")

_BUSY = 429
_REFUSED = Verdict(Outcome.UNJUDGED, counts=False)  # a request that the engine refused, which is the client's fault
# OpenTelemetry's names. The Python package has them only in a private module, deprecated without a public successor.
_EVENT = "gen_ai.evaluation.result"
_EVALUATION = "specgate.answer_integrity"
_CELL = ("model", "pool", "speculative", "request_class")


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One engine's response and what became of it.

    There is no result for an attempt that was cut short because the client left, nor for an engine's refusal (any
    status but 200). A response that `length` cut has one, but its `verdict.counts` is False, unless it repeats itself.

    Attributes:
        model: The model's own name in the configuration.
        request_class: As a class expression, such as `tools_auto` or `tools_auto+json_schema+strict+thinking`.
        speculative: Whether that pool speculated for this request.
        verdict: The guard's verdict; `verdict.outcome` is never `rerun`, and `failed` only if the engine itself failed.
        attempt: 0 for the first attempt, 1 for the first rerun.
        final: What the client got, if this was the last attempt: `clean`, `rescued`, `rerun` (an earlier attempt was
            broken, this one was not), `failed` (an error), or what is still wrong with it. None if a rerun follows.
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


ResultSink = Callable[[AttemptResult], None]
"""Takes a result; called on the request path, in the request's span: it must be quick and never raise."""


class TrialFinding(StrEnum):
    """The finding of one trial.

    `GOOD`: the first answer was clean, or what is wrong is no pool's fault. `BAD`: it was not, and the other
    pool's was, or is not asked after such a failure. `BOTH`: neither was. `UNSEEN`: it was not, and the other pool's
    did not come to its end. `ABSENT`: the pool did not answer, so that another had to. `LEFT`: the first answer was
    given up before its end, mostly by the client.
    """

    GOOD = "good"
    BAD = "bad"
    BOTH = "both"
    UNSEEN = "unseen"
    ABSENT = "absent"
    LEFT = "left"


def finding_of(trial: Trial, tried: Sequence[Candidate], verdicts: Sequence[Verdict]) -> TrialFinding:
    """Returns what a trial found.

    A failure of both is one only if either would have been rerun: otherwise it would be counted for one order of the
    two and not for the other, and a pool would be blamed for the kind of its failures (docs/adr/0077).

    Args:
        trial: The comparison.
        tried: The candidates that answered, in their order; none if nobody did.
        verdicts: On their answers; fewer if one did not come to its end.
    """
    if not tried or tried[0] != trial.first:
        return TrialFinding.ABSENT
    if not verdicts:
        return TrialFinding.LEFT
    first = verdicts[0]
    if first.good or not first.counts:
        return TrialFinding.GOOD
    if not trial.paired or not _is_rerun(first):
        return TrialFinding.BAD
    if len(verdicts) < 2 or tried[1] != trial.other or not verdicts[1].counts:
        return TrialFinding.UNSEEN
    return TrialFinding.BOTH if _is_rerun(verdicts[1]) else TrialFinding.BAD


def _is_rerun(verdict: Verdict) -> bool:
    """True for a failure after which a request runs again; a rescued answer and a mere note are none."""
    return any(defect.severity is not Severity.NOTE for defect in verdict.defects)


Found = Callable[[Trial, TrialFinding], None]


class Reports:
    """Tells what came of requests: `sink` gets the result of every attempt, and `found` what came of every trial."""

    def __init__(self, telemetry: Telemetry, sink: ResultSink, found: Found) -> None:
        self._telemetry = telemetry
        self._sink = sink
        self._found = found

    def evaluate(self, request: RoutedRequest, guard: Guard, candidate: Candidate, number: int) -> None:
        """Tells the span of an attempt, which is still open, what the guard found; nothing if it was cut short."""
        if self._telemetry.traced and number < len(guard.verdicts):
            evaluate(guard.verdicts[number], candidate, request.features.request_class, guard.response_id)

    def report(
        self, request: RoutedRequest, span: Span, guard: Guard, tried: Sequence[Candidate], *, settled: bool
    ) -> None:
        """Reports every attempt that has a verdict, and what the client got if the answer came to its end (`settled`).

        An attempt that was cut short because the client left has none.
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


_CellState = Mapping[str, Any]  # as the quarantine's view has it


class ResultMetrics:
    """Counts attempt results, and shows the quarantine state of every cell, as `cells` returns it. A `ResultSink`."""

    def __init__(self, metrics: Metrics, cells: Callable[[], Iterable[_CellState]]) -> None:
        self._verdicts = metrics.tally(
            "specgate_verdicts_total",
            "Attempts checked by the guard, by model, pool, class and outcome",
            *_CELL,
            "outcome",
            "counts",
        )
        self._answers = metrics.tally(
            "specgate_answers_total", "Guarded responses as clients got them, by model, class and outcome",
            "model", "request_class", "outcome",
        )  # fmt: skip
        self._near_copies = metrics.counter(
            "specgate_near_copies_total", "Calls with a near copy of a name in the prompt", *_CELL
        )

        def each(value: Callable[[_CellState], float | None]) -> Reading:
            return lambda: (
                (_labels(cell["model"], cell["pool"], cell["speculative"], cell["request_class"]), number)
                for cell in cells()
                if (number := value(cell)) is not None
            )

        def measured(value: Callable[[_CellState], float]) -> Reading:
            return each(lambda cell: None if cell["clean_rate"] is None else value(cell))

        for name, description, reading in (
            (
                "specgate_quarantined", "1 for a cell in quarantine, 0 for any other",
                each(lambda cell: float(cell["status"] == "quarantined")),
            ),
            (
                "specgate_clean_rate", "Share of clean responses in a cell's current window",
                measured(lambda cell: cell["clean_rate"]),
            ),
            (
                "specgate_clean_rate_low", "Lower bound of the clean rate, by its interval",
                measured(lambda cell: 1 - cell["bad_rate_at_most"]),
            ),
            (
                "specgate_clean_rate_high", "Upper bound of the clean rate, by its interval",
                measured(lambda cell: 1 - cell["bad_rate_at_least"]),
            ),
        ):  # fmt: skip
            metrics.read("gauge", name, description, _CELL, reading)

    def __call__(self, result: AttemptResult) -> None:
        """Counts one result."""
        verdict = result.verdict
        cell = _labels(result.model, result.pool, result.speculative, result.request_class)
        self._verdicts[*cell, str(verdict.outcome), "yes" if verdict.counts else "no"] += 1
        if near_copies := verdict.near_copies:
            self._near_copies(*cell).inc(near_copies)
        if result.final is not None:
            self._answers[result.model, result.request_class, str(result.final)] += 1


def _labels(model: str, pool: str, speculative: bool, request_class: str) -> tuple[str, ...]:
    return model, pool, "on" if speculative else "off", request_class
