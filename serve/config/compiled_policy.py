"""The policy that a configuration, the advisories and the engines' own reports compile to."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import policies
from policies import Advisory, Policy, PolicyError, PoolFacts, compile_policy, load_advisories
from policies.advisory import unreadable
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.config.qualifications import QualifiedEngine, key_of, qualification_of, read_qualifications
from serve.config.signed_index import SignedIndex, read_index, read_signed
from serve.errors import ConfigError

SHIPPED_ADVISORIES = Path(policies.__file__).parent / "advisories"
_CONFIGURED = {"model", "pool", "kind", "proven", "canary_share", "qualification"}
_LEARNABLE = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - _CONFIGURED


def compile_for(
    config: GatewayConfig,
    learned: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    advisories: Sequence[Advisory] | None = None,
    qualified: Sequence[QualifiedEngine] | None = None,
) -> Policy:
    """Compiles the policy of a configuration. Facts that running replicas have learned, by (model, pool), override the
    configuration, but not an operator's explicit `facts`. Advisories and qualified engines that are not given are read
    from the configuration's folders.

    Raises:
        ConfigError: The policy settings or the advisories are invalid.
    """
    engines = read_qualifications(config.policy) if qualified is None else qualified
    try:
        facts = [
            with_verdicts(config, merged_facts(config, pool, (learned or {}).get((pool.model, pool.pool), {})), engines)
            for pool in config.pool_facts()
            if not config.is_candidate(pool.model, pool.pool)  # for decisions there is no such pool
        ]
        return compile_policy(facts, advisories or read_advisories(config.policy), config.policy_settings())
    except PolicyError as error:
        raise ConfigError(str(error)) from error


def read_advisories(policy: PolicyConfig, *, strict: bool = False) -> tuple[Advisory, ...]:
    """Reads the advisories of a configuration. If strict, it refuses all of them if one can't be read. Otherwise each
    such one counts as matched: a starting gateway had better lose speed than be down, whereas an update of a running
    one can be refused.

    Raises:
        ConfigError: The folder holds none, or one of them can't be read.
    """
    if policy.advisories and policy.advisories_key:
        try:
            return read_signed(Path(policy.advisories), Path(policy.advisories_key))
        except ConfigError as error:
            if strict:
                raise
            return (unreadable("advisories", str(error)),)
    try:
        advisories = load_advisories(Path(policy.advisories) if policy.advisories else SHIPPED_ADVISORIES)
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    problems = [f"{advisory.id}: {advisory.problem}" for advisory in advisories if advisory.problem]
    if problems and strict:
        raise ConfigError(f"advisories that can't be read: {', '.join(problems)}")
    return advisories


def signed_index(policy: PolicyConfig) -> SignedIndex | None:
    """Returns the index that vouches for a configuration's advisories; None if nobody needs to, or nobody does."""
    if not (policy.advisories and policy.advisories_key):
        return None
    try:
        return read_index(Path(policy.advisories), Path(policy.advisories_key))
    except ConfigError:
        return None


def with_verdicts(config: GatewayConfig, facts: PoolFacts, qualified: Sequence[QualifiedEngine]) -> PoolFacts:
    """Returns a pool's facts with the verdicts on its engine, if there are any."""
    if not qualified:
        return facts
    return dataclasses.replace(facts, qualification=qualification_of(qualified, key_of(config, facts)))


def merged_facts(config: GatewayConfig, facts: PoolFacts, learned: Mapping[str, Any]) -> PoolFacts:
    """Returns a pool's facts as they hold now."""
    pool = config.models[facts.model].pools[facts.pool]
    explicit = pool.facts
    if pool.kind == "remote" and any(value != explicit.get(name) for name, value in learned.items()):
        # A remote pool reports the facts of its configuration until its engine shows that they don't hold.
        known = {name: value for name, value in learned.items() if name in _LEARNABLE}
        return config.facts_of_other_engine(facts.model, facts.pool, known)
    updates = {name: value for name, value in learned.items() if name in _LEARNABLE and name not in explicit}
    return dataclasses.replace(facts, **updates)
