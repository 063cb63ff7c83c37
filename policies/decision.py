"""What is decided for a request, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Why: an advisory's id, or one of ours.

    Ours are `caller-opt-out`, `operator-pin`, `operator-forbid`, `no-speculative-pool`, `canary`, `quarantine`,
    `quarantine-probe` and `reference-sample`.

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
    """One allowed way to serve the request."""

    pool: str
    opt_out: bool
    speculative: bool
    optimistic: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a request.

    Attributes:
        pool: None if refused.
        opt_out: The engine must be told not to speculate for this request.
        optimistic: It speculates although an advisory is suspected of biting; the guard must watch.
        reasons: All of them, against whichever pool, sorted.
        candidates: Every allowed way, best first; the first is the decision, the others are for retries and reruns.
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
        """The best evidence among the reasons, for a header: `measured n=...`, else `advisory`; `none` without any."""
        bases = sorted({reason.basis for reason in self.reasons} - {"operator", "caller"})
        return next((each for each in bases if each != "advisory"), bases[0] if bases else "none")
