"""Judgements as telemetry: an evaluation event on the request's span, counters, and gauges of quarantine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from serve.guard.judgement import Judgement
from serve.telemetry.counter import Count

# OpenTelemetry's names; the Python package has them only in a private module that says they moved elsewhere.
_EVENT = "gen_ai.evaluation.result"
_EVALUATION = "specgate.answer_integrity"

_CELL = ("model", "pool", "speculative", "request_class")

Cells = Callable[[], Iterable[Mapping[str, Any]]]


class VerdictTelemetry:
    """Tells of judgements and of what is known of every cell. A `VerdictSink`.

    Args:
        meter: Makes the instruments.
        cells: What is known of every cell at the moment, as `Quarantine.view` gives it.
    """

    def __init__(self, meter: metrics.Meter, cells: Cells) -> None:
        self._cells = cells
        self._verdicts = Count(
            meter,
            "specgate.verdicts",
            "Engines' answers that were judged, by model, pool, class and outcome",
            *_CELL,
            "outcome",
            "counts",
        )
        self._answers = Count(
            meter,
            "specgate.answers",
            "Guarded answers as clients got them, by model, class and outcome",
            "model",
            "request_class",
            "outcome",
        )
        meter.create_observable_gauge(
            "specgate.quarantined", [self._quarantined], "1", "1 for a cell in quarantine, 0 for any other"
        )
        meter.create_observable_gauge(
            "specgate.clean_rate", [self._clean_rate], "1", "Share of clean answers in a cell's present window"
        )

    def __call__(self, judgement: Judgement) -> None:
        """Count one judgement and note it on the span that is current."""
        verdict = judgement.verdict
        cell = _labels(judgement.model, judgement.pool, judgement.speculative, judgement.request_class)
        self._verdicts.add(*cell, str(verdict.outcome), "yes" if verdict.counts else "no")
        if judgement.final is not None:
            self._answers.add(judgement.model, judgement.request_class, str(judgement.final))
        span = trace.get_current_span()
        if span.is_recording():
            span.add_event(_EVENT, evaluation(judgement))

    def _quarantined(self, _: CallbackOptions) -> Iterable[Observation]:
        for cell in self._cells():
            yield Observation(int(cell["status"] == "quarantined"), _labels_of(cell))

    def _clean_rate(self, _: CallbackOptions) -> Iterable[Observation]:
        for cell in self._cells():
            if cell["clean_rate"] is not None:
                yield Observation(cell["clean_rate"], _labels_of(cell))


def evaluation(judgement: Judgement) -> dict[str, Any]:
    """A judgement as the attributes of OpenTelemetry's evaluation event: 1 (`pass`) is a clean answer, 0 any other."""
    verdict = judgement.verdict
    attributes: dict[str, Any] = {
        "gen_ai.evaluation.name": _EVALUATION,
        "gen_ai.evaluation.score.value": 1.0 if verdict.good else 0.0,
        "gen_ai.evaluation.score.label": "pass" if verdict.good else "fail",
        "specgate.outcome": str(verdict.outcome),
        "specgate.pool": judgement.pool,
        "specgate.speculative": judgement.speculative,
        "specgate.request_class": judgement.request_class,
        "specgate.attempt": judgement.attempt,
    }
    if verdict.defects:
        attributes["gen_ai.evaluation.explanation"] = "; ".join(each.detail for each in verdict.defects[:5])
    if judgement.response_id:
        attributes["gen_ai.response.id"] = judgement.response_id
    return attributes


def _labels(model: str, pool: str, speculative: bool, request_class: str) -> tuple[str, ...]:
    return model, pool, "on" if speculative else "off", request_class


def _labels_of(cell: Mapping[str, Any]) -> dict[str, str]:
    values = _labels(cell["model"], cell["pool"], cell["speculative"], cell["request_class"])
    return dict(zip(_CELL, values, strict=True))
