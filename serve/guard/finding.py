"""The finding of one trial: how the answer of the pool that chance put first was, and if it broke, the other pool's."""

from collections.abc import Sequence
from enum import StrEnum

from policies import Candidate, Trial
from serve.guard.core import Severity, Verdict


class TrialFinding(StrEnum):
    """The finding of one trial.

    `GOOD`: the first answer was clean, or what is wrong is no pool's fault. `BAD`: it was not, and the other
    pool's was, or is not asked after such a failure. `BOTH`: neither was. `UNSEEN`: it was not, and the other pool's
    did not come to its end. `ABSENT`: the pool did not answer, so that another had to. `LEFT`: the first answer was
    given up before its end, mostly by the client.
    """

    GOOD = "good"
    BAD = "bad"
    BOTH = "both"
    UNSEEN = "unseen"
    ABSENT = "absent"
    LEFT = "left"


def finding_of(trial: Trial, tried: Sequence[Candidate], verdicts: Sequence[Verdict]) -> TrialFinding:
    """Returns what a trial found.

    A failure of both is one only if either would have been rerun: otherwise it would be counted for one order of the
    two and not for the other, and a pool would be blamed for the kind of its failures (docs/adr/0077).

    Args:
        trial: The comparison.
        tried: The candidates that answered, in their order; none if nobody did.
        verdicts: On their answers; fewer if one did not come to its end.
    """
    if not tried or tried[0] != trial.first:
        return TrialFinding.ABSENT
    if not verdicts:
        return TrialFinding.LEFT
    first = verdicts[0]
    if first.good or not first.counts:
        return TrialFinding.GOOD
    if not trial.paired or not _is_rerun(first):
        return TrialFinding.BAD
    if len(verdicts) < 2 or tried[1] != trial.other or not verdicts[1].counts:
        return TrialFinding.UNSEEN
    return TrialFinding.BOTH if _is_rerun(verdicts[1]) else TrialFinding.BAD


def _is_rerun(verdict: Verdict) -> bool:
    """True for a failure after which a request runs again; a rescued answer and a mere note are none."""
    return any(defect.severity is not Severity.NOTE for defect in verdict.defects)
