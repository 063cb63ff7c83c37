"""Attempt results as telemetry."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from serve.guard.attempt_result import AttemptResult
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.guard.metrics import ResultTelemetry

CLEAN = Verdict(Outcome.CLEAN)
CUT = Verdict(Outcome.TRUNCATED, (Defect(Outcome.TRUNCATED, Severity.HARD, "the arguments end early"),))
CELL = {"model": "m", "pool": "fast", "speculative": True, "request_class": "tools_auto"}
BOUNDS = {"bad_rate_at_least": 0.125, "bad_rate_at_most": 0.5}


def result(verdict: Verdict, attempt: int = 0, final: Outcome | None = None) -> AttemptResult:
    return AttemptResult("m", "fast", "tools_auto", True, verdict, attempt, final, "req-1", "chatcmpl-1")


def metrics_of(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]  # type: ignore[union-attr]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }


def test_answers_of_engines_and_of_the_gateway_are_counted_apart() -> None:
    reader = InMemoryMetricReader()
    sink = ResultTelemetry(MeterProvider([reader]).get_meter("t"), list)
    sink(result(CUT))
    sink(result(CLEAN, 1, Outcome.RERUN))
    sink(result(Verdict(Outcome.TRUNCATED, counts=False), 0, Outcome.TRUNCATED))
    told = metrics_of(reader)
    labels = {**CELL, "speculative": "on"}
    assert told["specgate.verdicts"] == [
        ({**labels, "outcome": "truncated", "counts": "yes"}, 1),
        ({**labels, "outcome": "clean", "counts": "yes"}, 1),
        ({**labels, "outcome": "truncated", "counts": "no"}, 1),
    ]
    assert [(point["outcome"], value) for point, value in told["specgate.answers"]] == [("rerun", 1), ("truncated", 1)]


def test_what_is_in_quarantine_and_how_clean_a_cell_is_can_be_graphed() -> None:
    reader = InMemoryMetricReader()
    cells = [
        {**CELL, "status": "quarantined", "clean_rate": None, **BOUNDS},
        {**CELL, "pool": "safe", "speculative": False, "status": "open", "clean_rate": 0.75, **BOUNDS},
    ]
    ResultTelemetry(MeterProvider([reader]).get_meter("t"), lambda: cells)
    told = metrics_of(reader)
    assert [(point["pool"], value) for point, value in told["specgate.quarantined"]] == [("fast", 1), ("safe", 0)]
    for name, rate in (("clean_rate", 0.75), ("clean_rate.low", 0.5), ("clean_rate.high", 0.875)):
        assert [(point["pool"], value) for point, value in told[f"specgate.{name}"]] == [("safe", rate)]
