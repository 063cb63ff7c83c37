"""The policy in force, which may be replaced while requests are under way."""

from policies.decide import decide
from policies.decision import Decision
from policies.features import RequestFeatures
from policies.policy import Policy
from policies.trial import Trial


class LivePolicy:
    """The policy in force in one gateway replica.

    Attributes:
        policy: Replaced as a whole; requests under way keep their decision.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def adopt(self, policy: Policy) -> None:
        """Puts another policy in force."""
        self.policy = policy

    def decide(self, features: RequestFeatures) -> Decision:
        """Returns the decision for a request."""
        return decide(self.policy, features, features.preference)

    def draw(self, decision: Decision, features: RequestFeatures) -> tuple[Decision, Trial | None]:
        """Returns the decision by which the request is sent, and the comparison of pools that it is part of.

        Args:
            decision: From `decide`, its candidates in their final order.
            features: Of the request.
        """
        return decision, None

    def found(self, trial: Trial, finding: str) -> None:
        """Takes what came of a trial."""
