"""The arms: which pool gets the next request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.goodput.engine import Engine, Request
from bench.goodput.traffic import ACCEPTANCE, TOOLS, Load
from policies.acceptance import Acceptance
from policies.classes import BIT
from policies.decision import Candidate
from policies.load_model import PREFILL_TOKENS_PER_S, PUBLISHED, prior_length
from policies.ranking import MARGIN, WEIGHT, PoolLoad, Worth, price_of_time, reordered, step_times, worth

SPECULATIVE = "speculative"
STANDARD = "standard"
_MASK: Mapping[str, int] = {TOOLS: BIT["tools_auto"], "prose": BIT["plain"]}
_CANDIDATES = {pool: Candidate(pool, False, pool == SPECULATIVE) for pool in (SPECULATIVE, STANDARD)}


@dataclass(slots=True)
class Cluster:
    """The engines and what is running there.

    Attributes:
        pools: The replicas of each pool, the speculative one first.
        running: Requests in each pool by class.
    """

    pools: dict[str, list[Engine]]
    load: Load
    running: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = {pool: dict.fromkeys(ACCEPTANCE, 0) for pool in self.pools}

    def allowed(self, kind: str) -> list[str]:
        """Returns the pools that the advisories allow, as `decide` orders them."""
        return [pool for pool in self.pools if pool != SPECULATIVE or kind not in self.load.forbidden]

    def requests(self, pool: str) -> int:
        """Returns how many requests a pool has."""
        return sum(self.running[pool].values())

    def is_full(self, pool: str) -> bool:
        """True if no replica of a pool has a seat."""
        return self.requests(pool) >= sum(engine.seats for engine in self.pools[pool])


Arm = Callable[[Request, float], str]
Ended = Callable[[Request], None]


def _first_with_room(cluster: Cluster, pools: Sequence[str]) -> str:
    return next((pool for pool in pools if not cluster.is_full(pool)), pools[-1])


def speculative_first(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """The order of `decide`; a full pool is skipped."""
    return lambda request, _: _first_with_room(cluster, cluster.allowed(request.kind)), _nothing


def standard_only(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """No speculation."""
    return lambda request, _: STANDARD, _nothing


def two_choices(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """The less loaded of the pools, as a load balancer without classes does it."""

    def choose(request: Request, _: float) -> str:
        pools = cluster.allowed(request.kind)
        picked = [rng.choice(pools), rng.choice(pools)]
        return min(picked, key=lambda pool: cluster.requests(pool) / len(cluster.pools[pool]))

    return choose, _nothing


def class_rule(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """Tools where they draft best, prose on the standard pool; a full pool is skipped."""

    def choose(request: Request, _: float) -> str:
        pools = cluster.allowed(request.kind)
        return _first_with_room(cluster, pools if request.kind == TOOLS else [STANDARD, *pools])

    return choose, _nothing


def oracle(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """Knows step times and true acceptance: the best split of all that is running, by exact search at each request.

    For a given number of requests on the speculative pool, throughput grows with their tokens per step: the best split
    gives it those that draft best, and only their number is to be found.
    """
    fast, plain = cluster.pools[SPECULATIVE], cluster.pools[STANDARD]

    def rate(engines: Sequence[Engine], requests: int, lengths: float) -> float:
        batch = min(-(-requests // len(engines)), engines[0].seats)
        served = min(1.0, engines[0].seats * len(engines) / requests) if requests else 1.0
        return lengths * served / engines[0].step_s[batch]

    def choose(request: Request, at: float) -> str:
        pools = cluster.allowed(request.kind)
        if len(pools) == 1:
            return pools[0]
        present = {kind: sum(cluster.running[pool][kind] for pool in cluster.pools) for kind in ACCEPTANCE}
        present[request.kind] += 1
        kinds = [kind for kind in ACCEPTANCE if kind not in cluster.load.forbidden]
        kinds.sort(key=lambda kind: -cluster.load.length(kind, at, 3))
        ranked = [kind for kind in kinds for _ in range(present[kind])]
        total = sum(present.values())
        lengths, best, best_rate = 0.0, 0, rate(plain, total, total)
        for count, kind in enumerate(ranked, 1):
            lengths += cluster.load.length(kind, at, 3)
            found = rate(fast, count, lengths) + rate(plain, total - count, total - count)
            if found > best_rate:
                best, best_rate = count, found
        wanted = ranked[:best].count(request.kind)
        here = SPECULATIVE if cluster.running[SPECULATIVE][request.kind] < wanted else STANDARD
        return _first_with_room(cluster, [here, *pools])

    return choose, _nothing


def faithful_oracle(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """The oracle for a conversation's first turn; all others follow it, so that no prefix is computed twice."""
    choose, ended = oracle(cluster, rng)
    home: dict[int, str] = {}

    def chosen(request: Request, at: float) -> str:
        pool = home.get(request.session)
        if pool is None or cluster.is_full(pool) or pool not in cluster.allowed(request.kind):
            pool = home[request.session] = choose(request, at)
        return pool

    return chosen, ended


def ranked(cluster: Cluster, rng: Random, share: float = 1.0) -> tuple[Arm, Ended]:
    """Ours: the gateway's own ranking, with what it has learned from the answers so far.

    Args:
        cluster: The engines.
        rng: Not needed.
        share: Of the requests that this gateway replica sees.
    """
    loads = {
        pool: PoolLoad(step_times(PUBLISHED, engines[0].drafts, engines[0].seats), len(engines), share)
        for pool, engines in cluster.pools.items()
    }
    learned = {
        (pool, kind): Acceptance(prior_length(_MASK[kind], engines[0].drafts))
        for pool, engines in cluster.pools.items()
        for kind in ACCEPTANCE
    }
    homes: dict[int, tuple[str, int]] = {}
    begun: dict[int, tuple[str, float]] = {}

    def choose(request: Request, at: float) -> str:
        pools = cluster.allowed(request.kind)
        home, known = homes.get(request.session, ("", 0))
        price = price_of_time([loads[pool] for pool in pools], WEIGHT)
        worths: list[Worth] = []
        for pool in pools:
            kind = learned[pool, request.kind]
            missing = request.prompt - (known if pool == home else 0)
            worths.append(worth(loads[pool], kind.length, price, missing / PREFILL_TOKENS_PER_S, kind.tokens))
        candidates = [_CANDIDATES[pool] for pool in pools]
        order = reordered(candidates, worths, MARGIN) or candidates
        pool = order[0].pool
        length = learned[pool, request.kind].length
        loads[pool].begin(length)
        begun[id(request)] = (pool, length)
        homes[request.session] = (pool, request.prompt)
        return pool

    def ended(request: Request) -> None:
        pool, length = begun.pop(id(request))
        loads[pool].end(length)
        if pool == SPECULATIVE:
            steps = max(1, round(request.tokens / request.length))
            learned[pool, request.kind].learn(steps, request.tokens - steps)

    return choose, ended


def two_gateways(cluster: Cluster, rng: Random) -> tuple[Arm, Ended]:
    """Two gateway replicas with the load ranking; each sees its own requests only."""
    gateways = [ranked(cluster, rng, 0.5) for _ in range(2)]
    return (
        lambda request, at: gateways[request.session % 2][0](request, at),
        lambda request: gateways[request.session % 2][1](request),
    )


def _nothing(_: Request) -> None:
    """Learns nothing."""


ARMS: Mapping[str, Callable[[Cluster, Random], tuple[Arm, Ended]]] = {
    "speculative first": speculative_first,
    "standard only": standard_only,
    "two choices": two_choices,
    "class rule": class_rule,
    "load ranking": ranked,
    "two gateways": two_gateways,
    "oracle": oracle,
    "faithful oracle": faithful_oracle,
}
