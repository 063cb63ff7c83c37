"""A trial: one request by which two candidates are compared."""

from typing import NamedTuple

from policies.decision import Candidate
from policies.policy import Cell


class Trial(NamedTuple):
    """A comparison of two candidates by one request, of which chance says who answers first.

    Attributes:
        cell: What is tested.
        subject: Its candidate.
        reference: What it is compared with.
        share: Chance that the subject was to answer first.
        first: The one that chance chose.
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
