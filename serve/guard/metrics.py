"""Attempt results as metrics: counters, and gauges of quarantine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from serve.guard.attempt_result import AttemptResult
from serve.telemetry.instruments import LabelledCounter

_CELL = ("model", "pool", "speculative", "request_class")

Cells = Callable[[], Iterable[Mapping[str, Any]]]


class ResultTelemetry:
    """Reports attempt results and the quarantine state of every cell. A `ResultSink`.

    Args:
        meter: Makes the instruments.
        cells: Returns the present state of every cell, as the quarantine's view has it.
    """

    def __init__(self, meter: metrics.Meter, cells: Cells) -> None:
        self._cells = cells
        self._verdicts = LabelledCounter(
            meter,
            "specgate.verdicts",
            "Attempts checked by the guard, by model, pool, class and outcome",
            *_CELL,
            "outcome",
            "counts",
        )
        self._answers = LabelledCounter(
            meter,
            "specgate.answers",
            "Guarded responses as clients got them, by model, class and outcome",
            "model",
            "request_class",
            "outcome",
        )
        meter.create_observable_gauge(
            "specgate.quarantined", [self._quarantined], "1", "1 for a cell in quarantine, 0 for any other"
        )
        meter.create_observable_gauge(
            "specgate.clean_rate", [self._clean_rate], "1", "Share of clean responses in a cell's current window"
        )
        meter.create_observable_gauge(
            "specgate.clean_rate.low", [self._clean_rate_low], "1", "Lower bound of the clean rate, by its interval"
        )
        meter.create_observable_gauge(
            "specgate.clean_rate.high", [self._clean_rate_high], "1", "Upper bound of the clean rate, by its interval"
        )

    def __call__(self, result: AttemptResult) -> None:
        """Counts one result."""
        verdict = result.verdict
        cell = _labels(result.model, result.pool, result.speculative, result.request_class)
        self._verdicts.add(*cell, str(verdict.outcome), "yes" if verdict.counts else "no")
        if result.final is not None:
            self._answers.add(result.model, result.request_class, str(result.final))

    def _quarantined(self, _: CallbackOptions) -> Iterable[Observation]:
        for cell in self._cells():
            yield Observation(int(cell["status"] == "quarantined"), _labels_of(cell))

    def _clean_rate(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._measured(lambda cell: cell["clean_rate"])

    def _clean_rate_low(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._measured(lambda cell: 1 - cell["bad_rate_at_most"])

    def _clean_rate_high(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._measured(lambda cell: 1 - cell["bad_rate_at_least"])

    def _measured(self, value: Callable[[Mapping[str, Any]], float]) -> Iterable[Observation]:
        for cell in self._cells():
            if cell["clean_rate"] is not None:
                yield Observation(value(cell), _labels_of(cell))


def _labels(model: str, pool: str, speculative: bool, request_class: str) -> tuple[str, ...]:
    return model, pool, "on" if speculative else "off", request_class


def _labels_of(cell: Mapping[str, Any]) -> dict[str, str]:
    values = _labels(cell["model"], cell["pool"], cell["speculative"], cell["request_class"])
    return dict(zip(_CELL, values, strict=True))
