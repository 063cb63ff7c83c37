"""A configuration as simulated engines: its policy, and the replicas of each pool of one model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lab.sim.economics import Economics
from lab.sim.settings import SimSettings
from lab.simulation.engine import SimEngine
from lab.simulation.request import SimRequest
from policies import Candidate, Decision, Policy, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig

_SIM_FACTS = {"engine_version": "0", "drafter": "none", "tool_parser": "none", "prefix_caching": True}


class Shape(NamedTuple):
    """A pool of simulated engines.

    Attributes:
        drafts: Draft length; 0 without speculation.
        replicas: Engines.
        seats: Sequences that each of them runs.
    """

    drafts: int
    replicas: int
    seats: int


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
    shapes = {"speculative": Shape(drafts, replicas, seats), "standard": Shape(0, replicas, seats)}
    return config_of(shapes, routing, forbidden)


def config_of(shapes: Mapping[str, Shape], routing: str = "balanced", forbidden: Sequence[str] = ()) -> GatewayConfig:
    """Returns pools of one model.

    Args:
        shapes: By name; one without drafts must be among them.
        routing: Of each pool.
        forbidden: Request classes that are kept off the pools that draft.
    """

    def pool(shape: Shape) -> dict[str, Any]:
        drafts, replicas, seats = shape
        sim = {"max_num_seqs": seats, "economics": {}, "num_speculative_tokens": drafts}
        common = {"kind": "sim", "replicas": replicas, "routing": routing, "max_ongoing_requests": seats, "sim": sim}
        return {**common, "facts": _SIM_FACTS, "proven": ["any"]} if drafts else common

    pools = {name: pool(shape) for name, shape in shapes.items()}
    model = {"family": "sim", "grammar": "hermes", "pools": pools}
    overrides = [
        {"action": "forbid", "pool": name, "classes": list(forbidden), "reason": "as asked for"}
        for name, shape in shapes.items()
        if forbidden and shape.drafts
    ]
    return GatewayConfig.parse({"models": {"m": model}, "policy": {"overrides": overrides}})


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
            seats = min(settings.engine_seats(name) or pool.max_ongoing_requests, pool.max_ongoing_requests)
            economics = economics_of(pool)
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


def economics_of(pool: PoolConfig) -> Economics:
    """Returns what a pool's work costs: what a simulated pool states, else as published."""
    given: Mapping[str, Any] = pool.sim
    return SimSettings.from_mapping(given).economics or Economics()
