"""Places replicas on nodes, to see if all of them fit. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A node and the resources that it offers.

    Attributes:
        resources: By Ray's names: `CPU`, `GPU`, and custom ones. A missing `CPU` means unknown, so not limited.
    """

    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """One replica's bundles, which share a node unless `spread`."""

    name: str
    bundles: tuple[Mapping[str, float], ...]
    spread: bool = False

    @property
    def parts(self) -> tuple[Mapping[str, float], ...]:
        """The resources that each must be on a single node."""
        if self.spread:
            return self.bundles
        names = {name for bundle in self.bundles for name in bundle}
        return ({name: sum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names},)


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas by node, and those that fit nowhere."""

    on: Mapping[str, tuple[str, ...]]
    unplaced: tuple[Demand, ...] = ()


def place(demands: Iterable[Demand], nodes: Sequence[Node]) -> Placement:
    """Places the largest replicas first, each where it leaves the fewest GPUs idle, as Ray Serve does with PACK."""
    free = {node.name: dict(node.resources) for node in nodes}
    on: dict[str, list[str]] = {node.name: [] for node in nodes}
    unplaced: list[Demand] = []
    for demand in sorted(demands, key=lambda one: -sum(bundle.get("GPU", 0.0) for bundle in one.bundles)):
        trial = {name: dict(left) for name, left in free.items()}
        chosen = [_take(part, trial) for part in demand.parts]
        if all(chosen):
            free = trial
            for name in dict.fromkeys(filter(None, chosen)):
                on[name].append(demand.name)
        else:
            unplaced.append(demand)
    return Placement({node: tuple(replicas) for node, replicas in on.items()}, tuple(unplaced))


def why_unplaced(demand: Demand, nodes: Sequence[Node]) -> str:
    """Returns the reason in words: a resource that no node has, more than any node has, or all of them taken."""
    for part in demand.parts:
        for name, amount in sorted(part.items()):
            most = max((node.resources.get(name, _unstated(name)) for node in nodes), default=0.0)
            if amount and not most:
                return f"it asks for {amount:g} {name}, and no node offers any"
            if amount > most:
                return f"it asks for {amount:g} {name} on one node, and no node has more than {most:g}"
    return "every node that is large enough is taken by other replicas"


def _take(part: Mapping[str, float], free: dict[str, dict[str, float]]) -> str | None:
    """Takes resources from the best fitting node; returns its name, None if none fits."""
    fitting = [
        name
        for name, left in free.items()
        if all(left.get(resource, _unstated(resource)) >= amount for resource, amount in part.items())
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: (free[name].get("GPU", 0.0) - part.get("GPU", 0.0), name))
    for resource, amount in part.items():
        if resource in free[best]:
            free[best][resource] -= amount
    return best


def _unstated(resource: str) -> float:
    """Returns the limit of a resource that a node does not state: Ray detects CPUs and memory, but nothing else."""
    return float("inf") if resource in ("CPU", "memory") else 0.0
