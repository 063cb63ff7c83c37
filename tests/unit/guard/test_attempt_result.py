"""The guard's verdict as an event of the attempt's span."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from policies import Candidate
from serve.guard.attempt_result import evaluate
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.telemetry.instruments import Telemetry

FAST = Candidate("fast", opt_out=False, speculative=True)
CUT = Verdict(Outcome.TRUNCATED, (Defect(Outcome.TRUNCATED, Severity.HARD, "the arguments of secret end early", 0, 1),))


def evaluated(verdict: Verdict, response_id: str = "chatcmpl-1") -> ReadableSpan:
    spans = InMemorySpanExporter()
    telemetry = Telemetry({}, spans)
    with telemetry.step("chat m"):
        evaluate(verdict, FAST, "tools_auto", response_id)
    telemetry.shutdown()
    return spans.get_finished_spans()[0]


def test_a_broken_answer_fails_its_attempt_and_says_what_and_where_without_quoting_it() -> None:
    span = evaluated(CUT)
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
        evaluate(CUT, FAST, "tools_auto", "")
