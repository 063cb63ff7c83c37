"""From the configuration and what the engines say of themselves to a compiled policy, and the one in force."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import policies
from policies import Decision, Policy, PolicyError, PoolFacts, RequestFeatures, compile_policy, decide, load_advisories
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

SHIPPED_ADVISORIES = Path(policies.__file__).parent / "advisories"
_LEARNABLE = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - {
    "model",
    "pool",
    "kind",
    "proven",
    "canary_share",
}


class LivePolicy:
    """The policy that a gateway decides by at present.

    Attributes:
        policy: Replaced as a whole; requests under way keep the decision they have.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""
        self.policy = policy

    def decide(self, features: RequestFeatures) -> Decision:
        """The decision for a request."""
        return decide(self.policy, features, features.preference)


def compile_for(
    config: GatewayConfig,
    learned: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
) -> Policy:
    """Compile the policy of a configuration.

    Args:
        config: The gateway's configuration.
        learned: Facts that running replicas reported, by (model, pool); they outweigh what the configuration says,
            but not an operator's explicit `facts`.
        strict: Refuse advisories that can't be read. Without, each counts as matched: at the start of a gateway it is
            better to lose speed than to be down, while a change of a running one can be refused.

    Raises:
        ConfigError: The policy settings or the advisories make no sense.
    """
    folder = Path(config.policy.advisories) if config.policy.advisories else SHIPPED_ADVISORIES
    try:
        facts = [_merge(config, each, (learned or {}).get((each.model, each.pool), {})) for each in config.pool_facts()]
        policy = compile_policy(facts, load_advisories(folder), config.policy_settings())
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    if policy.unreadable and strict:
        raise ConfigError(f"advisories that can't be read: {', '.join(policy.unreadable)}")
    return policy


def _merge(config: GatewayConfig, facts: PoolFacts, learned: Mapping[str, Any]) -> PoolFacts:
    explicit = config.models[facts.model].pools[facts.pool].facts
    news = {name: value for name, value in learned.items() if name in _LEARNABLE and name not in explicit}
    return dataclasses.replace(facts, **news)
