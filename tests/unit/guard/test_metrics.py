"""Attempt results as telemetry."""

from serve.guard.attempt_result import AttemptResult
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.guard.metrics import ResultMetrics
from serve.telemetry.metrics import Metrics

CLEAN = Verdict(Outcome.CLEAN)
CUT = Verdict(Outcome.TRUNCATED, (Defect(Outcome.TRUNCATED, Severity.HARD, "the arguments end early"),))
CELL = {"model": "m", "pool": "fast", "speculative": True, "request_class": "tools_auto"}
BOUNDS = {"bad_rate_at_least": 0.125, "bad_rate_at_most": 0.5}


def result(verdict: Verdict, attempt: int = 0, final: Outcome | None = None) -> AttemptResult:
    return AttemptResult("m", "fast", "tools_auto", True, verdict, attempt, final, "req-1", "chatcmpl-1")


def samples(metrics: Metrics, *names: str) -> list[tuple[dict[str, str], float]]:
    return [(labels, value) for _, labels, value in metrics.collect(frozenset(names))]


def pools(found: list[tuple[dict[str, str], float]]) -> list[tuple[str, float]]:
    return [(labels["pool"], value) for labels, value in found]


def test_answers_of_engines_and_of_the_gateway_are_counted_apart() -> None:
    metrics = Metrics()
    sink = ResultMetrics(metrics, list)
    sink(result(CUT))
    sink(result(CLEAN, 1, Outcome.RERUN))
    sink(result(Verdict(Outcome.TRUNCATED, counts=False), 0, Outcome.TRUNCATED))
    labels = {**CELL, "speculative": "on"}
    assert samples(metrics, "specgate_verdicts_total") == [
        ({**labels, "outcome": "truncated", "counts": "yes"}, 1),
        ({**labels, "outcome": "clean", "counts": "yes"}, 1),
        ({**labels, "outcome": "truncated", "counts": "no"}, 1),
    ]
    assert [(point["outcome"], value) for point, value in samples(metrics, "specgate_answers_total")] == [
        ("rerun", 1),
        ("truncated", 1),
    ]


def test_what_is_in_quarantine_and_how_clean_a_cell_is_can_be_graphed() -> None:
    metrics = Metrics()
    cells = [
        {**CELL, "status": "quarantined", "clean_rate": None, **BOUNDS},
        {**CELL, "pool": "safe", "speculative": False, "status": "open", "clean_rate": 0.75, **BOUNDS},
    ]
    ResultMetrics(metrics, lambda: cells)
    assert [(point["pool"], value) for point, value in samples(metrics, "specgate_quarantined")] == [
        ("fast", 1),
        ("safe", 0),
    ]
    for name, rate in (("clean_rate", 0.75), ("clean_rate_low", 0.5), ("clean_rate_high", 0.875)):
        assert pools(samples(metrics, f"specgate_{name}")) == [("safe", rate)]
