"""Decides where speculation is safe: advisories as data, request classes, and decisions that explain themselves."""

from policies.advisory import Advisory, load_advisories
from policies.classes import RequestFeatures
from policies.decide import choose, decide
from policies.decision import Candidate, Cell, Decision, LoadOrder, Reason, Trial
from policies.engine_args import facts_from_engine_args
from policies.errors import PolicyError
from policies.explain import explain
from policies.facts import PoolFacts
from policies.policy import Override, Policy, PolicySettings, QuarantineReason, compile_policy
from policies.quarantine import (
    Draw,
    TrialTerms,
    is_suspected,
    mask_of_class,
    quarantine,
    reference_pool,
)

__all__ = [
    "Advisory",
    "Candidate",
    "Cell",
    "Decision",
    "Draw",
    "LoadOrder",
    "Override",
    "Policy",
    "PolicyError",
    "PolicySettings",
    "PoolFacts",
    "QuarantineReason",
    "Reason",
    "RequestFeatures",
    "Trial",
    "TrialTerms",
    "choose",
    "compile_policy",
    "decide",
    "explain",
    "facts_from_engine_args",
    "is_suspected",
    "load_advisories",
    "mask_of_class",
    "quarantine",
    "reference_pool",
]
