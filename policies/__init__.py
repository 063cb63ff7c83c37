"""Decides where speculation is safe: advisories as data, request classes, and decisions that explain themselves."""

from policies.advisory import Advisory, load_advisories
from policies.compile import compile_policy
from policies.decide import decide, in_order, led_by
from policies.decision import Candidate, Decision, Reason
from policies.engine_args import facts_from_engine_args
from policies.errors import PolicyError
from policies.explain import explain
from policies.facts import PoolFacts
from policies.features import RequestFeatures
from policies.interval import wilson
from policies.live import LivePolicy
from policies.policy import Cell, Policy, QuarantineReason
from policies.quarantine import is_suspected, mask_of_class, quarantine, reference_pool
from policies.settings import Override, PolicySettings
from policies.trial import Trial

__all__ = [
    "Advisory",
    "Candidate",
    "Cell",
    "Decision",
    "LivePolicy",
    "Override",
    "Policy",
    "PolicyError",
    "PolicySettings",
    "PoolFacts",
    "QuarantineReason",
    "Reason",
    "RequestFeatures",
    "Trial",
    "compile_policy",
    "decide",
    "explain",
    "facts_from_engine_args",
    "in_order",
    "is_suspected",
    "led_by",
    "load_advisories",
    "mask_of_class",
    "quarantine",
    "reference_pool",
    "wilson",
]
