"""A decision in the making, on which the stages for a class of requests work; `policies.decide` lists them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from policies.decision import Candidate, Reason, Suspended
from policies.policy import ModelPolicy, Policy, ServingOption


class RequestCase(NamedTuple):
    """All that decides for a class of requests."""

    policy: Policy
    model: str
    mask: int
    preference: bool | None

    @property
    def model_policy(self) -> ModelPolicy:
        """The model's part of the policy; empty if the model is unknown."""
        return self.policy.models.get(self.model, ModelPolicy((), ()))


class Contender(NamedTuple):
    """An option, and what has become of it so far."""

    option: ServingOption
    candidate: Candidate
    allowed: bool = True


class Shortlist(NamedTuple):
    """What the stages so far have left.

    Attributes:
        contenders: By mode, as `MODES` has it, and in the configuration's order.
        suspended: Contenders that only a test keeps out.
    """

    contenders: tuple[Contender, ...]
    reasons: frozenset[Reason] = frozenset()
    suspended: tuple[Suspended, ...] = ()


def shortlisted(case: RequestCase, stages: Iterable[Callable[[RequestCase, Shortlist], Shortlist]]) -> Shortlist:
    """Returns what the stages leave of all options. The stages apply in their order."""
    shortlist = Shortlist(tuple(Contender(each, _candidate(each)) for each in case.model_policy.options))
    for applied in stages:
        shortlist = applied(case, shortlist)
    return shortlist


def _candidate(option: ServingOption) -> Candidate:
    return Candidate(option.pool, option.mode == "opt_out", option.mode == "speculative")
