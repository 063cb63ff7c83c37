"""Which replica runs on which node: whether all of them find room. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """A node and what it offers; a resource that nobody stated is not limited.

    Attributes:
        resources: By Ray's names: `CPU`, `GPU`, and custom ones. A missing `CPU` means not known.
    """

    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """One replica: the bundles that it needs, which share a node unless `spread`."""

    name: str
    bundles: tuple[Mapping[str, float], ...]
    spread: bool = False

    @property
    def pieces(self) -> tuple[Mapping[str, float], ...]:
        """What must each lie on one node."""
        if self.spread:
            return self.bundles
        names = {name for bundle in self.bundles for name in bundle}
        return ({name: sum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names},)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each replica went, by node, and which found no room."""

    on: Mapping[str, tuple[str, ...]]
    without_room: tuple[Demand, ...] = field(default=())


def place(demands: Iterable[Demand], nodes: Sequence[Node]) -> Placement:
    """Put the largest first, each where it leaves the least GPUs idle, as Ray Serve does when told to pack."""
    free = {node.name: dict(node.resources) for node in nodes}
    on: dict[str, list[str]] = {node.name: [] for node in nodes}
    without: list[Demand] = []
    for demand in sorted(demands, key=lambda each: -sum(bundle.get("GPU", 0.0) for bundle in each.bundles)):
        trial = {name: dict(left) for name, left in free.items()}
        chosen = [_take(piece, trial) for piece in demand.pieces]
        if all(chosen):
            free = trial
            for name in dict.fromkeys(filter(None, chosen)):
                on[name].append(demand.name)
        else:
            without.append(demand)
    return Placement({name: tuple(each) for name, each in on.items()}, tuple(without))


def why_no_room(demand: Demand, nodes: Sequence[Node]) -> str:
    """The reason in words: a resource that no node has, more than any node has, or all of them taken."""
    for piece in demand.pieces:
        for name, amount in sorted(piece.items()):
            most = max((node.resources.get(name, _unstated(name)) for node in nodes), default=0.0)
            if amount and not most:
                return f"it asks for {amount:g} {name}, and no node offers any"
            if amount > most:
                return f"it asks for {amount:g} {name} on one node, and no node has more than {most:g}"
    return "each node that is large enough is taken by other replicas"


def _take(piece: Mapping[str, float], free: dict[str, dict[str, float]]) -> str | None:
    fitting = [
        name
        for name, left in free.items()
        if all(left.get(each, _unstated(each)) >= amount for each, amount in piece.items())
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: (free[name].get("GPU", 0.0) - piece.get("GPU", 0.0), name))
    for each, amount in piece.items():
        if each in free[best]:
            free[best][each] -= amount
    return best


def _unstated(resource: str) -> float:
    """What a node offers of a resource that it does not state: Ray counts CPUs and memory itself, GPUs we must know."""
    return float("inf") if resource in ("CPU", "memory") else 0.0
