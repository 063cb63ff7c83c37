"""The nouns of a decision: reasons, candidates, trials, and the decision itself. Immutable, equal by value.

They are structs that remember their hashes: a decision that was made before is found again by its value, at the price
of a look-up, and what others work out about it can be kept beside it in a dictionary.
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct

_EFFECTS = ("forbid", "pin", "optimistic", "overruled", "waived", "proven", "warn", "inform")
_ORDER = {name: place for place, name in enumerate(_EFFECTS)}
_POINTS = 2**32  # values of crc32


class Reason(Struct, frozen=True, order=True, cache_hash=True):
    """One reason for a decision.

    Its `advisory` is an advisory's id or one of `policies.decide.REASONS`.

    Attributes:
        effect: `forbid`, `pin`, `optimistic` (allowed, the guard watches), `overruled` (by the caller, in advise
            mode), `waived` or `proven` (by the operator), `warn`, `inform`.
        basis: `advisory`, `measured n=...`, `operator` or `caller`.
    """

    advisory: str
    effect: str
    summary: str
    basis: str = "advisory"


def by_effect(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Returns reasons in the order of a decision's."""
    return tuple(sorted(reasons, key=lambda reason: (_ORDER[reason.effect], reason)))


class Candidate(Struct, frozen=True, cache_hash=True):
    """One allowed option to serve the request."""

    pool: str
    opt_out: bool
    speculative: bool
    optimistic: bool = False

    @property
    def rank(self) -> int:
        """Undisputed speculation is first, then speculation under the guard, the engine's opt-out, and no drafter."""
        if self.speculative:
            return 1 if self.optimistic else 0
        return 2 if self.opt_out else 3


class Cell(NamedTuple):
    """The unit of quarantine: one pool for one class of requests. Each cell has its own clean rate.

    Attributes:
        speculative: With speculation or without: each can be broken independently of the other.
        request_class: A name from `policies.classes.class_of`.
    """

    model: str
    pool: str
    speculative: bool
    request_class: str

    def __str__(self) -> str:
        how = "with" if self.speculative else "without"
        return f"{self.model}/{self.pool} {how} speculation, {self.request_class}"


class Trial(NamedTuple):
    """A comparison of two candidates by one request; chance says which of them answers first.

    Attributes:
        share: Chance that the subject was to answer first.
        paired: If the first one's answer has to run again, it runs on the other.
    """

    cell: Cell
    subject: Candidate
    reference: Candidate
    share: float
    first: Candidate
    paired: bool

    @property
    def other(self) -> Candidate:
        """The one that does not answer first."""
        return self.reference if self.first == self.subject else self.subject


class Suspended(NamedTuple):
    """A candidate that a test has put into quarantine: probes may bring it back.

    Attributes:
        basis: Of the verdict: `measured n=...`.
    """

    candidate: Candidate
    cell: Cell
    basis: str


class LoadOrder(Struct, frozen=True, cache_hash=True):
    """The order in which candidates are worth most at the present load.

    Attributes:
        places: Of the candidates, best first.
        reason: Why that is better than the order so far.
    """

    places: tuple[int, ...]
    reason: Reason


class Decision(Struct, frozen=True, cache_hash=True, dict=True):
    """The decision for one request.

    Attributes:
        reasons: For and against every pool, as `by_effect` sorts them.
        candidates: All allowed ones, best first: the first is the decision, the others are for retries and reruns.
            Empty if the request is refused.
        tiers: For each candidate the number of its tier, within which the load may reorder; empty if the order is
            settled.
        suspended: Candidates that only quarantine keeps from being allowed.
        comparable: The request may be a trial: the guard can check its answer, and its caller leaves open who answers.
        trial: The comparison of pools that the request is part of.
    """

    model: str
    classes: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    tiers: tuple[int, ...] = ()
    suspended: tuple[Suspended, ...] = ()
    comparable: bool = False
    trial: Trial | None = None

    @cached_property
    def advisories(self) -> tuple[str, ...]:
        """The names of the reasons."""
        return tuple([reason.advisory for reason in self.reasons])

    @property
    def refused(self) -> bool:
        """No pool is allowed."""
        return not self.candidates

    @property
    def pool(self) -> str | None:
        """The best candidate's pool; None if refused."""
        return self.candidates[0].pool if self.candidates else None

    @property
    def speculative(self) -> bool:
        """The best candidate speculates."""
        return bool(self.candidates) and self.candidates[0].speculative

    @property
    def opt_out(self) -> bool:
        """The best candidate's engine must be told not to speculate for this request."""
        return bool(self.candidates) and self.candidates[0].opt_out

    @property
    def optimistic(self) -> bool:
        """It speculates although an advisory suspects a fault; the guard must check the answer."""
        return bool(self.candidates) and self.candidates[0].optimistic

    @property
    def evidence(self) -> str:
        """The best evidence among the reasons, for a header: `measured n=...`, `advisory`, or `none`."""
        bases = sorted({reason.basis for reason in self.reasons} - {"operator", "caller"})
        return next((basis for basis in bases if basis != "advisory"), bases[0] if bases else "none")


class Split(NamedTuple):
    """The decisions for one class of requests: a conversation always gets the same one.

    Attributes:
        ends: Ends of the parts of [0, 1), except for the last, which ends at 1; conversations spread evenly over it.
        decisions: For each part, those among which its conversations are divided equally.
    """

    ends: tuple[float, ...]
    decisions: tuple[tuple[Decision, ...], ...]

    def of(self, conversation: str) -> Decision:
        """Returns the decision for a conversation; an unidentified one gets the first, never a canary's."""
        if not self.ends and len(self.decisions[0]) == 1:
            return self.decisions[0][0]
        number = crc32(conversation.encode("utf-8", "replace"))
        decisions = self.decisions[bisect_right(self.ends, number / _POINTS)]
        return decisions[number % len(decisions)]
