"""The clusters, and every arm's runs on them under one load."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.goodput.loads import LOADS, Load
from lab.simulation.arms import ARMS, MakeArm, two_gateways
from lab.simulation.figures import figures
from lab.simulation.oracle import ORACLES
from lab.simulation.simulation import Outcome, play
from lab.simulation.site import Shape, Site, config_of
from policies import Policy
from serve.config.compiled_policy import compile_for

ALL_ARMS: Mapping[str, MakeArm] = {**ARMS, "two_gateways": two_gateways, **ORACLES}
# What is lost by a change of the traffic must be over by then; as long again is measured.
RECOVERY_S = 60.0
_POLICIES: dict[tuple[str, bool], Policy] = {}  # compiling one takes longer than some runs


class Cluster(NamedTuple):
    """The engines of a run, and its length.

    Attributes:
        pools: By name.
        duration_s: Virtual seconds.
    """

    pools: Mapping[str, Shape]
    duration_s: float = 60.0

    @property
    def seats(self) -> int:
        """Sequences that all engines run."""
        return sum(shape.replicas * shape.seats for shape in self.pools.values())


def two_pools(drafting: int, plain: int, seats: int, duration_s: float = 60.0) -> Cluster:
    """Returns a cluster of a pool that drafts three tokens and one that drafts none.

    Args:
        drafting: Engines that draft.
        plain: Engines that don't.
        seats: Sequences that each of them runs.
        duration_s: Virtual seconds.
    """
    return Cluster({"speculative": Shape(3, drafting, seats), "standard": Shape(0, plain, seats)}, duration_s)


CLUSTERS: Mapping[str, Cluster] = {
    "2 x 25 seats": two_pools(1, 1, 25, 120.0),
    "2 x 256 seats": two_pools(1, 1, 256),
    "8 x 64 seats": two_pools(4, 4, 64),
    "1 and 7 x 64": two_pools(1, 7, 64),
    "7 and 1 x 64": two_pools(7, 1, 64),
    "four pools": Cluster(
        {"five": Shape(5, 1, 64), "three": Shape(3, 2, 64), "one": Shape(1, 1, 128), "standard": Shape(0, 2, 64)}
    ),
}


def measured(cluster_name: str, load_name: str, seeds: Sequence[int], shorter: float = 1.0) -> list[dict[str, Any]]:
    """Returns a row for each arm under one load: the run with the median ratio to the oracle.

    Args:
        cluster_name: One of `CLUSTERS`.
        load_name: One of `LOADS`.
        seeds: One run each; all arms see the same ones.
        shorter: Divides the length of the runs.
    """
    load = next(each for each in LOADS if each.name == load_name)
    cluster = CLUSTERS[cluster_name]
    duration_s = (cluster.duration_s if load.changes_at is None else 2 * RECOVERY_S / (1 - load.changes_at)) / shorter
    cluster = cluster._replace(duration_s=duration_s)
    outcomes = {arm: [play_load(load, make_arm, seed, cluster) for seed in seeds] for arm, make_arm in ALL_ARMS.items()}
    rows = []
    for arm, runs in outcomes.items():
        found = []
        for number, run in enumerate(runs):
            best = max((outcomes[oracle][number] for oracle in ORACLES), key=lambda outcome: outcome.tokens_per_s)
            found.append({**figures(run, best.tokens_per_s), **_recovery(run, best, load, duration_s)})
        middle = median(each["ratio_to_oracle"] for each in found)
        row = min(found, key=lambda each: abs(each["ratio_to_oracle"] - middle))
        rows.append({"cluster": cluster_name, "load": load.name, "arm": arm, **row})
    return rows


def _recovery(run: Outcome, best: Outcome, load: Load, duration_s: float) -> dict[str, float]:
    """Returns the ratio to the oracle from a minute after the change on, if there is one and the run is that long."""
    if load.changes_at is None:
        return {}
    since_s = load.changes_at * duration_s + RECOVERY_S
    if since_s >= duration_s:
        return {}

    def tokens(outcome: Outcome) -> int:
        return sum(request.output_tokens for request in outcome.requests if request.end_s >= since_s)

    return {"after_change": round(tokens(run) / max(1, tokens(best)), 4)}


def play_load(load: Load, make_arm: MakeArm, seed: int, cluster: Cluster) -> Outcome:
    """Plays a load.

    Args:
        load: The traffic.
        make_arm: The arm.
        seed: Of all random numbers.
        cluster: The engines.
    """
    config = config_of(
        cluster.pools, "sticky" if load.agents else "balanced", forbidden=["tools"] if load.forbidden else ()
    )
    key = (repr(cluster.pools), load.forbidden)
    policy = _POLICIES.get(key) or _POLICIES.setdefault(key, compile_for(config))
    source = load.source(seed, cluster.seats, cluster.duration_s)
    return play(source, Site(config, policy), load.drafter(cluster.duration_s), make_arm, seed, cluster.duration_s)
