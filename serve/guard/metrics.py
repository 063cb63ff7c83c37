"""Attempt results as metrics: counters, and gauges of quarantine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serve.guard.attempt_result import AttemptResult
from serve.telemetry.metrics import Metrics, Reading

_CELL = ("model", "pool", "speculative", "request_class")

Cell = Mapping[str, Any]
Cells = Callable[[], Iterable[Cell]]


class ResultMetrics:
    """Counts attempt results, and shows the quarantine state of every cell. A `ResultSink`.

    Args:
        metrics: Get the metrics.
        cells: Returns the present state of every cell, as the quarantine's view has it.
    """

    def __init__(self, metrics: Metrics, cells: Cells) -> None:
        self._verdicts = metrics.counter(
            "specgate_verdicts_total",
            "Attempts checked by the guard, by model, pool, class and outcome",
            *_CELL,
            "outcome",
            "counts",
        )
        self._answers = metrics.counter(
            "specgate_answers_total", "Guarded responses as clients got them, by model, class and outcome",
            "model", "request_class", "outcome",
        )  # fmt: skip

        self._near_copies = metrics.counter(
            "specgate_near_copies_total",
            "Calls with a near copy of a name in the prompt",
            *_CELL,
        )

        def each(value: Callable[[Cell], float | None]) -> Reading:
            return lambda: (
                (_labels(cell["model"], cell["pool"], cell["speculative"], cell["request_class"]), number)
                for cell in cells()
                if (number := value(cell)) is not None
            )

        def measured(value: Callable[[Cell], float]) -> Reading:
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
        self._verdicts(*cell, str(verdict.outcome), "yes" if verdict.counts else "no").inc()
        if near_copies := verdict.near_copies:
            self._near_copies(*cell).inc(near_copies)
        if result.final is not None:
            self._answers(result.model, result.request_class, str(result.final)).inc()


def _labels(model: str, pool: str, speculative: bool, request_class: str) -> tuple[str, ...]:
    return model, pool, "on" if speculative else "off", request_class
