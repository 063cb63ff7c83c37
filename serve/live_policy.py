"""Compiles the policy from the configuration and the engines' own reports, and holds the one in force."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import policies
from policies import Decision, Policy, PolicyError, PoolFacts, RequestFeatures, compile_policy, decide, load_advisories
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

SHIPPED_ADVISORIES = Path(policies.__file__).parent / "advisories"
_CONFIGURED = {"model", "pool", "kind", "proven", "canary_share"}
_LEARNABLE = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - _CONFIGURED


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
        return decide(self.policy, features, features.wish)


def compile_for(
    config: GatewayConfig,
    learned: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
) -> Policy:
    """Compiles the policy of a configuration.

    Args:
        config: The gateway's configuration.
        learned: Facts that running replicas reported, by (model, pool); they override the configuration, but not an
            operator's explicit `facts`.
        strict: Refuses advisories that can't be read. Otherwise each of them counts as matched: a starting gateway
            had better lose speed than be down, whereas an update of a running one can be refused.

    Raises:
        ConfigError: The policy settings or the advisories are invalid.
    """
    folder = Path(config.policy.advisories) if config.policy.advisories else SHIPPED_ADVISORIES
    try:
        facts = [_merge(config, pool, (learned or {}).get((pool.model, pool.pool), {})) for pool in config.pool_facts()]
        policy = compile_policy(facts, load_advisories(folder), config.policy_settings())
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    if policy.unreadable and strict:
        raise ConfigError(f"advisories that can't be read: {', '.join(policy.unreadable)}")
    return policy


def _merge(config: GatewayConfig, facts: PoolFacts, learned: Mapping[str, Any]) -> PoolFacts:
    explicit = config.models[facts.model].pools[facts.pool].facts
    updates = {name: value for name, value in learned.items() if name in _LEARNABLE and name not in explicit}
    return dataclasses.replace(facts, **updates)
