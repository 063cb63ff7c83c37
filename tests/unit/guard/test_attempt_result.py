"""What came of attempts: as metrics, as an event of the attempt's span, and what a trial finds."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from policies import Candidate, Cell, Trial
from serve.guard.attempt_result import AttemptResult, ResultMetrics, TrialFinding, evaluate, finding_of
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Metrics

FAST = Candidate("speculative", opt_out=False, speculative=True)
SAFE = Candidate("standard", opt_out=False, speculative=False)
OTHER = Candidate("another", opt_out=False, speculative=False)
CELL = Cell("m", "speculative", True, "tools_auto")


def trial(first: Candidate = FAST, *, paired: bool = True) -> Trial:
    return Trial(CELL, FAST, SAFE, 0.98, first, paired)


def verdict(outcome: Outcome, severity: Severity = Severity.HARD, *, counts: bool = True) -> Verdict:
    return Verdict(outcome, (Defect(outcome, severity, "x"),) if outcome is not Outcome.CLEAN else (), counts)


CLEAN, BROKEN = verdict(Outcome.CLEAN), verdict(Outcome.TRUNCATED)
RESCUED = verdict(Outcome.RESCUED, Severity.NOTE)
CUT, UNJUDGED = verdict(Outcome.TRUNCATED, Severity.NOTE, counts=False), verdict(Outcome.UNJUDGED, counts=False)

answers = st.sampled_from([CLEAN, BROKEN, RESCUED, verdict(Outcome.SCHEMA_MISMATCH, Severity.SOFT), CUT, UNJUDGED])
firsts = st.sampled_from([FAST, SAFE])


def found(first: Candidate, *verdicts: Verdict, tried: Sequence[Candidate] = (), paired: bool = True) -> TrialFinding:
    drawn = trial(first, paired=paired)
    return finding_of(drawn, tried or [first, drawn.other], verdicts)


@given(answers, answers)
def test_who_is_blamed_depends_on_the_answers_and_never_on_their_order(fast: Verdict, safe: Verdict) -> None:
    """Otherwise the difference of the two rates would be estimated with a bias, at some share of failing alike."""
    if not fast.counts or not safe.counts:
        return  # a rerun that is no pool's fault leaves open what it would have been
    ran = {FAST: (fast, safe), SAFE: (safe, fast)}
    findings = {first: found(first, *each[: 1 + _reruns(each[0])]) for first, each in ran.items()}
    blamed = {first: findings[first] is TrialFinding.BAD for first in ran}
    rates = {FAST: not fast.good, SAFE: not safe.good}
    assert blamed[FAST] - blamed[SAFE] == rates[FAST] - rates[SAFE]
    assert (findings[FAST] is TrialFinding.BOTH) == (findings[SAFE] is TrialFinding.BOTH)


def _reruns(first: Verdict) -> bool:
    return first.outcome not in (Outcome.CLEAN, Outcome.RESCUED)


@given(firsts, answers)
def test_without_reruns_every_failure_of_the_first_answer_is_one(first: Candidate, answer: Verdict) -> None:
    expected = TrialFinding.GOOD if answer.good or not answer.counts else TrialFinding.BAD
    assert found(first, answer, tried=[first], paired=False) is expected


@given(firsts, st.lists(answers, max_size=3))
def test_what_another_pool_answered_in_its_place_is_no_answer_of_the_pool(first: Candidate, verdicts: Any) -> None:
    assert found(first, *verdicts, tried=[OTHER, *[first] * len(verdicts)]) is TrialFinding.ABSENT
    assert finding_of(trial(first), [], verdicts) is TrialFinding.ABSENT


@given(firsts)
def test_an_answer_that_was_given_up_is_left(first: Candidate) -> None:
    assert found(first, tried=[first]) is TrialFinding.LEFT


@given(firsts)
def test_a_rerun_that_did_not_come_or_end_or_ran_elsewhere_or_says_nothing_leaves_open_what_it_was(
    first: Candidate,
) -> None:
    other = trial(first).other
    assert found(first, BROKEN, tried=[first]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, tried=[first, other]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, CLEAN, tried=[first, OTHER]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, CUT) is found(first, BROKEN, UNJUDGED) is TrialFinding.UNSEEN


@given(firsts, st.sampled_from([CUT, UNJUDGED]), st.lists(answers, max_size=2))
def test_an_answer_that_is_no_pools_fault_is_none_of_its_failures(
    first: Candidate, blameless: Verdict, more: Any
) -> None:
    assert found(first, blameless, *more) is TrialFinding.GOOD


QUOTING = Verdict(
    Outcome.TRUNCATED, (Defect(Outcome.TRUNCATED, Severity.HARD, "the arguments of secret end early", 0, 1),)
)


def evaluated(verdict: Verdict, response_id: str = "chatcmpl-1") -> ReadableSpan:
    spans = InMemorySpanExporter()
    telemetry = Telemetry({}, spans)
    with telemetry.step("chat m"):
        evaluate(verdict, FAST, "tools_auto", response_id)
    telemetry.shutdown()
    return spans.get_finished_spans()[0]


def test_a_broken_answer_fails_its_attempt_and_says_what_and_where_without_quoting_it() -> None:
    span = evaluated(QUOTING)
    (event,) = span.events
    assert event.name == "gen_ai.evaluation.result"
    reply = dict(event.attributes or {})
    assert (reply["gen_ai.evaluation.score.value"], reply["gen_ai.evaluation.score.label"]) == (0.0, "fail")
    assert reply["gen_ai.evaluation.explanation"] == "truncated in choice 0, call 1"
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "truncated")
    assert "secret" not in span.to_json()


def test_a_clean_one_passes_and_leaves_out_what_is_not_known() -> None:
    span = evaluated(Verdict(Outcome.CLEAN), response_id="")
    reply = dict(span.events[0].attributes or {})
    assert reply["gen_ai.evaluation.name"] == "specgate.answer_integrity"
    assert reply["gen_ai.evaluation.score.value"] == 1.0
    assert not {"gen_ai.evaluation.explanation", "gen_ai.response.id"} & reply.keys()
    assert span.status.status_code is StatusCode.UNSET


def test_without_spans_there_is_nothing_to_do() -> None:
    with Telemetry({}).step("chat m"):
        evaluate(QUOTING, FAST, "tools_auto", "")


LABELS = {"model": "m", "pool": "fast", "speculative": True, "request_class": "tools_auto"}
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
    sink(result(BROKEN))
    sink(result(CLEAN, 1, Outcome.RERUN))
    sink(result(Verdict(Outcome.TRUNCATED, counts=False), 0, Outcome.TRUNCATED))
    labels = {**LABELS, "speculative": "on"}
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
        {**LABELS, "status": "quarantined", "clean_rate": None, **BOUNDS},
        {**LABELS, "pool": "safe", "speculative": False, "status": "open", "clean_rate": 0.75, **BOUNDS},
    ]
    ResultMetrics(metrics, lambda: cells)
    assert [(point["pool"], value) for point, value in samples(metrics, "specgate_quarantined")] == [
        ("fast", 1),
        ("safe", 0),
    ]
    for name, rate in (("clean_rate", 0.75), ("clean_rate_low", 0.5), ("clean_rate_high", 0.875)):
        assert pools(samples(metrics, f"specgate_{name}")) == [("safe", rate)]
