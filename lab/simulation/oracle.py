"""The oracle: knows step times, load and the true acceptance of every class, and searches exactly."""

from collections.abc import Mapping, Sequence
from random import Random

from lab.simulation.arms import Arm, MakeArm
from lab.simulation.engine import SimEngine
from lab.simulation.informed import informed_oracle
from lab.simulation.request import KINDS, Drafter, SimRequest
from lab.simulation.site import Site
from lab.simulation.split import Splits
from policies import Candidate, Decision


class Oracle:
    """Splits all that is running among the pools again at each request.

    Args:
        site: The engines.
        drafter: The truth about its acceptance.
        faithful: Conversations stay in the pool of their first turn, so that no prefix is computed twice.
    """

    def __init__(self, site: Site, drafter: Drafter, faithful: bool = False) -> None:
        self._site = site
        self._drafter = drafter
        self._faithful = faithful
        self._home: dict[str, str] = {}
        self._pools = list(site.engines)
        self._splits = Splits([_Engines(engines).rate for engines in site.engines.values()])
        self._allowed = {kind: self._candidates(kind) for kind in KINDS}

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        best = self._home.get(request.session) if self._faithful else None
        if best is None:
            best = self._best(request, now_s) if len(decision.candidates) > 1 else decision.candidates[0].pool
        return sorted(decision.candidates, key=lambda one: (one.pool != best, not one.speculative))

    def placed(self, request: SimRequest, now_s: float) -> None:
        if self._faithful and request.candidate is not None:
            self._home[request.session] = request.candidate.pool

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Learns nothing: it knows."""

    def _best(self, request: SimRequest, now_s: float) -> str:
        """Returns the pool that has fewest of its requests of this kind in the best split of all."""
        kinds = [kind for kind, allowed in self._allowed.items() if allowed]
        running = self._site.running
        present = [sum(running[pool][kind] for pool in self._pools) + (kind == request.kind) for kind in kinds]
        split = self._splits.best(present, [self._lengths(kind, now_s) for kind in kinds])
        wanted = dict(zip(self._pools, split[kinds.index(request.kind)], strict=True))
        return max(self._pools, key=lambda pool: wanted[pool] - running[pool][request.kind])

    def _lengths(self, kind: str, now_s: float) -> list[float]:
        """Returns the tokens per step in each pool; 0 where such requests may not go."""
        allowed = self._allowed[kind]
        return [
            self._drafter.length(kind, self._site.drafts(allowed[pool]), now_s) if pool in allowed else 0.0
            for pool in self._pools
        ]

    def _candidates(self, kind: str) -> Mapping[str, Candidate]:
        """Returns the first candidate in each pool that such requests may go to."""
        decision = self._site.decide(SimRequest(0.0, "", kind, 1, 1))
        return {candidate.pool: candidate for candidate in reversed(decision.candidates)}


class _Engines:
    """The engines of a pool, which share their requests evenly.

    Args:
        engines: At least one.
    """

    def __init__(self, engines: Sequence[SimEngine]) -> None:
        self._count = len(engines)
        self._batch = engines[0].batch
        self._rates: list[float] = []

    def rate(self, requests: int) -> float:
        """Returns the steps per second of one request among so many, the time that it waits for a seat included."""
        while len(self._rates) <= requests:
            number = len(self._rates)
            batch = min(-(-number // self._count), self._batch.seats)
            served = min(1.0, self._batch.seats * self._count / number) if number else 1.0
            self._rates.append(served / self._batch.step_s_of(batch))
        return self._rates[requests]


def oracle(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Splits again at each request."""
    return Oracle(site, drafter)


def faithful_oracle(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Splits again at each conversation."""
    return Oracle(site, drafter, faithful=True)


ORACLES: Mapping[str, MakeArm] = {
    "oracle": oracle,
    "faithful oracle": faithful_oracle,
    "informed oracle": informed_oracle,
}
