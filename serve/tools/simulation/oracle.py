"""The oracle: knows step times, load and the true acceptance of every class, and searches exactly."""

from collections.abc import Mapping, Sequence
from random import Random

from policies import Candidate, Decision
from serve.tools.simulation.arms import Arm, MakeArm
from serve.tools.simulation.engine import SimEngine
from serve.tools.simulation.request import KINDS, Drafter, SimRequest
from serve.tools.simulation.site import Site


class Oracle:
    """Splits all that is running between pools with drafter and pools without, anew at each request.

    For a given number of requests on the drafting engines, throughput grows with their tokens per step: the best split
    gives them those that draft best, and only their number is to be found.

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
        self._pools = {
            drafts: [pool for pool, engines in site.engines.items() if bool(engines[0].drafts) is drafts]
            for drafts in (True, False)
        }
        self._engines = {
            drafts: _Engines([engine for pool in pools for engine in site.engines[pool]])
            for drafts, pools in self._pools.items()
            if pools
        }
        self._movable = [kind for kind in KINDS if self._may_draft(kind)]

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        site = self._site
        home = self._home.get(request.session) if self._faithful else None
        best = decision.candidates[0].pool if home is None else home
        if home is None and len(decision.candidates) > 1 and len(self._engines) > 1:
            drafts = self._should_draft(request, now_s)
            best = min(
                (one.pool for one in decision.candidates),
                key=lambda pool: (
                    (pool in self._pools[True]) is not drafts,
                    site.requests(pool) / len(site.engines[pool]),
                ),
            )
        return sorted(decision.candidates, key=lambda one: (one.pool != best, not one.speculative))

    def placed(self, request: SimRequest, now_s: float) -> None:
        if self._faithful and request.candidate is not None:
            self._home[request.session] = request.candidate.pool

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Learns nothing: it knows."""

    def _should_draft(self, request: SimRequest, now_s: float) -> bool:
        """Returns True if the best split of all requests has room for one more of this kind on the drafting engines."""
        fast, plain = self._engines[True], self._engines[False]
        length = {kind: self._drafter.length(kind, fast.drafts, now_s) for kind in KINDS}
        present = {kind: sum(running[kind] for running in self._site.running.values()) for kind in KINDS}
        present[request.kind] += 1
        ranked = [kind for kind in sorted(self._movable, key=lambda kind: -length[kind]) for _ in range(present[kind])]
        total = sum(present.values())
        best, best_rate, lengths = 0, plain.rate(total) * total, 0.0
        for count, kind in enumerate(ranked, 1):
            lengths += length[kind]
            rate = fast.rate(count) * lengths + plain.rate(total - count) * (total - count)
            if rate > best_rate:
                best, best_rate = count, rate
        here = sum(self._site.running[pool][request.kind] for pool in self._pools[True])
        return here < ranked[:best].count(request.kind)

    def _may_draft(self, kind: str) -> bool:
        sample = SimRequest(0.0, "", kind, 1, 1)
        return any(candidate.speculative for candidate in self._site.decide(sample).candidates)


class _Engines:
    """Engines that share their requests evenly; those of several pools count as alike.

    Args:
        engines: At least one.

    Attributes:
        drafts: Draft length.
    """

    def __init__(self, engines: Sequence[SimEngine]) -> None:
        self.drafts = engines[0].drafts
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
    """Splits anew at each request."""
    return Oracle(site, drafter)


def faithful_oracle(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Splits anew at each conversation."""
    return Oracle(site, drafter, faithful=True)


ORACLES: Mapping[str, MakeArm] = {"oracle": oracle, "faithful oracle": faithful_oracle}
