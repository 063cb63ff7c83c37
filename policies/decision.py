"""The decision for a request, with its reasons and candidates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """One reason for a decision.

    Its `advisory` is an advisory's id or one of `caller-opt-out`, `operator-pin`, `operator-forbid`,
    `no-speculative-pool`, `canary`, `quarantine`, `quarantine-probe`, `reference-sample` and `load`.

    Attributes:
        effect: `forbid`, `pin`, `optimistic` (allowed, the guard watches), `overruled` (by the caller, in advise
            mode), `waived` or `proven` (by the operator), `warn`, `inform`.
        basis: `advisory`, `measured n=...`, `operator` or `caller`.
    """

    advisory: str
    effect: str
    summary: str
    basis: str = "advisory"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One allowed option to serve the request."""

    pool: str
    opt_out: bool
    speculative: bool
    optimistic: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one request.

    Attributes:
        pool: None if refused.
        opt_out: The engine must be told not to speculate for this request.
        optimistic: It speculates although an advisory suspects a fault; the guard must check the answer.
        reasons: For and against every pool, sorted.
        candidates: All of them, best first; the first is the decision, the others are for retries and reruns.
    """

    model: str
    pool: str | None
    speculative: bool
    opt_out: bool
    optimistic: bool
    classes: tuple[str, ...]
    reasons: tuple[Reason, ...]
    refused: bool
    candidates: tuple[Candidate, ...]

    @property
    def evidence(self) -> str:
        """The best evidence among the reasons, for a header: `measured n=...`, `advisory`, or `none`."""
        bases = sorted({reason.basis for reason in self.reasons} - {"operator", "caller"})
        return next((basis for basis in bases if basis != "advisory"), bases[0] if bases else "none")
