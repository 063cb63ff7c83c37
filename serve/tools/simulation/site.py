"""A configuration as simulated engines: its policy, and the replicas of each pool of one model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from policies import Candidate, Decision, Policy, decide
from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig
from serve.config.seats import engine_seats
from serve.engine.sim.economics import Economics
from serve.engine.sim.settings import SimSettings
from serve.live_policy import compile_for
from serve.tools.simulation.engine import SimEngine
from serve.tools.simulation.request import SimRequest

_SIM_FACTS = {"engine_version": "0", "drafter": "none", "tool_parser": "none", "prefix_caching": True}


def default_config(
    replicas: int = 1, seats: int = 256, drafts: int = 3, *, routing: str = "balanced", forbidden: Sequence[str] = ()
) -> GatewayConfig:
    """Returns one speculative and one standard pool of one model.

    Args:
        replicas: Of each pool.
        seats: Of each replica.
        drafts: Draft length of the speculative pool.
        routing: Of each pool.
        forbidden: Request classes that are kept off the speculative pool.
    """

    def pool(drafts: int) -> dict[str, Any]:
        sim = {"max_num_seqs": seats, "economics": {}, "num_speculative_tokens": drafts}
        common = {"kind": "sim", "replicas": replicas, "routing": routing, "max_ongoing_requests": seats, "sim": sim}
        return {**common, "facts": _SIM_FACTS, "proven": ["any"]} if drafts else common

    model = {"family": "sim", "grammar": "hermes", "pools": {"speculative": pool(drafts), "standard": pool(0)}}
    override = {"action": "forbid", "pool": "speculative", "classes": list(forbidden), "reason": "as asked for"}
    return GatewayConfig.parse({"models": {"m": model}, "policy": {"overrides": [override] if forbidden else []}})


class Site:
    """The engines of a configuration's first model, and the policy in front of them.

    Args:
        config: The gateway's configuration.
        policy: Compiled for it; compiled here if not given.

    Attributes:
        engines: The replicas by pool, in the file's order.
        running: Requests of each kind, by pool.
    """

    def __init__(self, config: GatewayConfig, policy: Policy | None = None) -> None:
        self.config = config
        self.model = next(iter(config.models))
        self.policy = policy or compile_for(config)
        settings = config.models[self.model]
        drafts = {
            facts.pool: (facts.num_speculative_tokens or 0) if facts.speculative else 0
            for facts in self.policy.facts
            if facts.model == self.model
        }
        self.engines: dict[str, list[SimEngine]] = {}
        for name, pool in settings.pools.items():
            seats = min(engine_seats(settings, name) or pool.max_ongoing_requests, pool.max_ongoing_requests)
            economics = _economics(pool)
            self.engines[name] = [SimEngine(economics, drafts[name], seats) for _ in range(pool.replicas)]
        self.running: dict[str, Counter[str]] = {name: Counter() for name in self.engines}

    def decide(self, request: SimRequest) -> Decision:
        """Returns the policy's decision on a request, without regard to load."""
        features = request.features_for(self.model)
        return decide(self.policy, features, features.preference)

    def requests(self, pool: str) -> int:
        """Returns how many requests a pool has."""
        return sum(engine.requests for engine in self.engines[pool])

    def is_full(self, pool: str) -> bool:
        """True if no replica of a pool has a seat."""
        return all(engine.requests >= engine.batch.seats for engine in self.engines[pool])

    def drafts(self, candidate: Candidate) -> int:
        """Returns the draft length that a request gets with a candidate."""
        return self.engines[candidate.pool][0].drafts if candidate.speculative else 0

    def hit_rate(self) -> float:
        """Returns the share of prompt tokens that were cached."""
        caches = [engine.batch.kv for engine in self.all_engines()]
        return sum(kv.hits for kv in caches) / max(1, sum(kv.queried for kv in caches))

    def all_engines(self) -> Sequence[SimEngine]:
        """Returns the engines of all pools."""
        return [engine for replicas in self.engines.values() for engine in replicas]

    def count(self, request: SimRequest, change: int) -> None:
        """Counts a request that begins (1) or ends (-1) where it is."""
        assert request.candidate is not None
        self.running[request.candidate.pool][request.kind] += change


def _economics(pool: PoolConfig) -> Economics:
    """Returns what a pool's work costs: what a simulated pool states, else as published."""
    given: Mapping[str, Any] = pool.sim
    return SimSettings.from_mapping(given).economics or Economics()
