"""What the guard found, on its way to whoever counts: one value for every answer of an engine that was judged."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from policies.classes import JUDGED
from serve.guard.core import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """One engine's answer and what became of it.

    An answer that nobody waited for (the client left) is not judged, and neither is an engine's refusal (any status but
    200): those produce no judgement. One that was cut by `length` does, and its `verdict.counts` is False.

    Attributes:
        model: The configuration's own name of the model.
        pool: Whose answer it was.
        request_class: As a class expression, such as `tools_auto` or `tools_auto+json_schema+strict+thinking`.
        speculative: Whether that pool speculated for this request.
        verdict: What was found in it; `verdict.outcome` is never `rerun` or, unless the engine itself failed, `failed`.
        attempt: 0 for the first answer to the request, 1 for its rerun.
        final: What the client got, if this was the last attempt: `clean`, `rescued`, `rerun` (an earlier attempt was
            broken, this one was not), `failed` (an error), or what is still wrong with it. None if a rerun follows.
        request_id: The request's `x-request-id`.
        response_id: The answer's own id, such as `chatcmpl-...`; empty if it had none.
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


class VerdictSink(Protocol):
    """Takes judgements; called on the request path, in the request's span, so it must be quick and must not raise."""

    def __call__(self, judgement: Judgement) -> None:
        """Count one."""
        ...


def ignore(judgement: Judgement) -> None:
    """The sink where nobody counts."""


def request_class(classes: Iterable[str]) -> str:
    """The one class under which an answer is counted, of a request's published classes; `policies` names it alike."""
    return "+".join(name for name in classes if name in JUDGED)
