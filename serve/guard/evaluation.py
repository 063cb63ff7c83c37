"""The guard's verdict on an attempt as OpenTelemetry's evaluation event, on that attempt's span."""

from opentelemetry import trace

from policies import Candidate
from serve.guard.core import Verdict
from serve.telemetry.spans import Attribute, fail

# OpenTelemetry's names. The Python package has them only in a private module, deprecated without a public successor.
_EVENT = "gen_ai.evaluation.result"
_EVALUATION = "specgate.answer_integrity"


def evaluate(verdict: Verdict, candidate: Candidate, request_class: str, response_id: str) -> None:
    """Adds a verdict to the current span, which is that of the attempt, and marks the span if the answer is broken.

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
