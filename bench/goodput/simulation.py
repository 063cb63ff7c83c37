"""Plays one load against one arm in virtual time: a discrete-event simulation without sockets."""

import math
from dataclasses import dataclass, field
from random import Random

from bench.goodput.arms import ARMS, SPECULATIVE, STANDARD, Cluster
from bench.goodput.engine import Engine, Request
from bench.goodput.traffic import TOOLS, Load, Users
from policies.load_model import PUBLISHED

_TICK_S = 0.05  # how often the number of users is looked at


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster and the length of a run.

    Attributes:
        replicas: Engines of each pool.
        seats: Sequences that each runs.
        drafts: Draft length of the speculative pool.
        duration_s: Virtual seconds.
    """

    replicas: int = 1
    seats: int = 256
    drafts: int = 3
    duration_s: float = 120.0


@dataclass(slots=True)
class Outcome:
    """What a run yielded.

    Attributes:
        tokens: Tokens of all answers that were completed.
        calls: Answers with tools among them.
        first_s: Time to the first token of each answer.
        per_token_s: Time per token after it.
        hit_rate: Share of prompt tokens that were cached.
    """

    tokens: int = 0
    calls: int = 0
    first_s: list[float] = field(default_factory=list)
    per_token_s: list[float] = field(default_factory=list)
    hit_rate: float = 0.0


def play(load: Load, arm: str, seed: int, setting: Setting) -> Outcome:
    """Plays a load.

    Args:
        load: The traffic.
        arm: Name of the arm.
        seed: Of all random numbers.
        setting: The cluster.
    """
    pools = {
        SPECULATIVE: [Engine(PUBLISHED, setting.drafts, setting.seats) for _ in range(setting.replicas)],
        STANDARD: [Engine(PUBLISHED, 0, setting.seats) for _ in range(setting.replicas)],
    }
    cluster = Cluster(pools, load)
    choose, ended = ARMS[arm](cluster, Random(seed + 1))
    run = _Run(cluster, Users(load, seed), setting)
    outcome = Outcome()
    while run.now_s < setting.duration_s:
        at = run.now_s / setting.duration_s
        run.fill(at, choose)
        request = run.step()
        if request is not None:
            ended(request)
            _count(outcome, request, run.now_s)
    engines = [engine for replicas in pools.values() for engine in replicas]
    outcome.hit_rate = sum(engine.hits[0] for engine in engines) / max(1, sum(engine.hits[1] for engine in engines))
    return outcome


class _Run:
    """The state of one run."""

    def __init__(self, cluster: Cluster, users: Users, setting: Setting) -> None:
        self.now_s = 0.0
        self._cluster = cluster
        self._users = users
        self._setting = setting
        self._engines = [(pool, engine) for pool, replicas in cluster.pools.items() for engine in replicas]
        self._seats = sum(engine.seats for _, engine in self._engines)
        self._present = 0
        self._tick_s = 0.0

    def fill(self, at: float, choose: object) -> None:
        """Lets as many users send a request as the load wants at a time."""
        wanted = math.ceil(self._cluster.load.users(at) * self._seats)
        while self._present < wanted:
            request = self._users.next(self.now_s, at)
            request.pool = choose(request, at)  # type: ignore[operator]
            drafts = self._cluster.pools[request.pool][0].drafts
            request.length = self._cluster.load.length(request.kind, at, drafts)
            self._cluster.running[request.pool][request.kind] += 1
            self._replica(request).submit(request, self.now_s, request.length)
            self._present += 1

    def _replica(self, request: Request) -> Engine:
        """Returns the conversation's replica of its pool, or the least loaded one if that is full."""
        replicas = self._cluster.pools[request.pool]
        home = replicas[request.session % len(replicas)]
        if self._cluster.load.agents and home.running < home.seats:
            return home
        return min(replicas, key=lambda engine: engine.running + len(engine.waiting))

    def step(self) -> Request | None:
        """Goes on to the next event; returns the request that ends there, if one does."""
        end_s, (pool, engine) = min(
            ((entry[1].next_end_s(), entry) for entry in self._engines), key=lambda candidate: candidate[0]
        )
        if end_s > self._tick_s:
            self.now_s = self._tick_s
            self._tick_s += _TICK_S
            return None
        self.now_s = end_s
        request = engine.finish(end_s)
        self._cluster.running[pool][request.kind] -= 1
        self._users.answered(request)
        self._present -= 1
        return request


def _count(outcome: Outcome, request: Request, now_s: float) -> None:
    outcome.tokens += request.tokens
    outcome.calls += request.kind == TOOLS
    outcome.first_s.append(request.first_s - request.arrived_s)
    outcome.per_token_s.append((now_s - request.first_s) / max(1, request.tokens - 1))
