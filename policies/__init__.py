"""What is safe: advisories as data, request classes, and the decision that explains itself."""

from policies.advisory import Advisory, load_advisories
from policies.compile import compile_policy
from policies.decide import Candidate, Decision, Reason, decide
from policies.errors import PolicyError
from policies.explain import explain
from policies.facts import PoolFacts, facts_from_engine_args
from policies.features import RequestFeatures
from policies.interval import wilson
from policies.policy import Policy
from policies.settings import Override, PolicySettings

__all__ = [
    "Advisory",
    "Candidate",
    "Decision",
    "Override",
    "Policy",
    "PolicyError",
    "PolicySettings",
    "PoolFacts",
    "Reason",
    "RequestFeatures",
    "compile_policy",
    "decide",
    "explain",
    "facts_from_engine_args",
    "load_advisories",
    "wilson",
]
