"""The outcome of one attempt, as the guard reports it to telemetry and quarantine."""

from dataclasses import dataclass
from typing import Protocol

from serve.guard.core import Outcome, Verdict


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
