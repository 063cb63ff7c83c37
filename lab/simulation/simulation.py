"""Plays traffic against an arm in virtual time."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random
from typing import Protocol
from zlib import crc32

from lab.simulation.arms import Arm, MakeArm
from lab.simulation.engine import SimEngine
from lab.simulation.request import Drafter, SimRequest
from lab.simulation.site import Site
from policies import Candidate
from serve.routing.prefix_placement import Placed, PrefixPlacement

_NEVER = math.inf
_NEXT_END = attrgetter("next_end_s")


class Source(Protocol):
    """A source of requests."""

    def next_s(self) -> float:
        """Returns when the next one may come; infinity if none does before another has ended."""
        ...

    def due(self, now_s: float) -> Sequence[SimRequest]:
        """Returns those that come now."""
        ...

    def ended(self, request: SimRequest) -> None:
        """Tells that one is complete."""
        ...


class Recorded:
    """Requests that come when they came, whatever became of those before them.

    Args:
        requests: In order of time.
    """

    def __init__(self, requests: Sequence[SimRequest]) -> None:
        self._left = deque(requests)

    def next_s(self) -> float:
        return self._left[0].at_s if self._left else _NEVER

    def due(self, now_s: float) -> Sequence[SimRequest]:
        found = []
        while self._left and self._left[0].at_s <= now_s:
            found.append(self._left.popleft())
        return found

    def ended(self, request: SimRequest) -> None:
        """Nobody waits for it."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        requests: Those that are complete.
        refused: Requests that no pool is allowed to serve.
        forbidden: Requests that were served where the policy forbids it.
        began_s: When the first one arrived.
        end_s: When the last one was complete, or the run was stopped.
        hit_rate: Share of prompt tokens that were cached.
        engines: Replicas of all pools.
    """

    requests: list[SimRequest] = field(default_factory=list)
    refused: int = 0
    forbidden: int = 0
    began_s: float = 0.0
    end_s: float = 0.0
    hit_rate: float = 0.0
    engines: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all complete answers."""
        return sum(request.output_tokens for request in self.requests)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of complete answers per second, from the first arrival to the end."""
        return self.tokens / max(1e-9, self.end_s - self.began_s)


def play(
    source: Source, site: Site, drafter: Drafter, make_arm: MakeArm, seed: int, until_s: float = _NEVER
) -> Outcome:
    """Plays traffic to its end.

    Args:
        source: The requests.
        site: The engines, idle.
        drafter: What it accepts.
        make_arm: The arm.
        seed: Of the arm's and the balancer's random choices.
        until_s: When to stop before the end.
    """
    return _Run(source, site, drafter, make_arm(site, drafter, Random(seed)), Random(seed + 1)).play(until_s)


class _Run:
    """The state of one run."""

    def __init__(self, source: Source, site: Site, drafter: Drafter, arm: Arm, rng: Random) -> None:
        self._source = source
        self._site = site
        self._drafter = drafter
        self._arm = arm
        self._rng = rng
        self._engines = site.all_engines()
        self._waiting: deque[tuple[SimRequest, Sequence[Candidate]]] = deque()
        self._placements: dict[str, PrefixPlacement] = {}
        self._placed: dict[SimRequest, Placed] = {}  # where pools route by prefix
        self._now_s = 0.0
        self._outcome = Outcome(began_s=source.next_s(), engines=len(self._engines))

    def play(self, until_s: float) -> Outcome:
        """Goes from event to event."""
        while True:
            arrival_s = self._source.next_s()
            engine = min(self._engines, key=_NEXT_END)
            end_s = engine.next_end_s
            self._now_s = min(arrival_s, end_s)
            if self._now_s >= until_s or self._now_s == _NEVER:
                break
            if arrival_s <= end_s:
                for request in self._source.due(self._now_s):
                    self._arrive(request)
            else:
                self._end(engine)
        self._outcome.hit_rate = self._site.hit_rate()
        self._outcome.end_s = min(until_s, max((one.end_s for one in self._outcome.requests), default=0.0))
        return self._outcome

    def _arrive(self, request: SimRequest) -> None:
        decision = self._site.decide(request)
        if decision.refused:
            self._outcome.refused += 1
            return
        order = self._arm.order(request, decision, self._now_s)
        free = next((one for one in order if not self._site.is_full(one.pool)), None)
        if free is None:
            self._waiting.append((request, order))
        else:
            self._start(request, free)

    def _start(self, request: SimRequest, candidate: Candidate) -> None:
        request.candidate = candidate
        if candidate not in self._site.decide(request).candidates:
            self._outcome.forbidden += 1
        request.length = self._drafter.length(request.kind, self._site.drafts(candidate), self._now_s)
        self._site.count(request, 1)
        self._arm.placed(request, self._now_s)
        self._replica(request, candidate.pool).submit(request, self._now_s)

    def _replica(self, request: SimRequest, pool: str) -> SimEngine:
        """Returns a replica with room, chosen as the pool's `routing` says."""
        routing = self._site.config.models[self._site.model].pools[pool].routing
        if routing == "prefix":
            return self._by_prefix(request, pool)
        engines = [engine for engine in self._site.engines[pool] if engine.requests < engine.batch.seats]
        if routing == "sticky":
            return engines[crc32(request.session.encode()) % len(engines)]
        return min((self._rng.choice(engines), self._rng.choice(engines)), key=lambda engine: engine.requests)

    def _by_prefix(self, request: SimRequest, pool: str) -> SimEngine:
        engines = self._site.engines[pool]
        slots = {str(number): engine.batch.seats for number, engine in enumerate(engines)}
        kept_tokens = engines[0].batch.kv.tokens
        placement = self._placements.setdefault(pool, PrefixPlacement(lambda: slots, lambda _: kept_tokens))
        for other, placed in self._placed.items():
            if 0 < other.first_s <= self._now_s:
                placed.begun()
        blocks = request.blocks
        url = placement.choose(blocks) or "0"  # of one replica there is no choice
        self._placed[request] = placement.at(url, blocks)
        self._placed[request].__enter__()
        return engines[int(url)]

    def _end(self, engine: SimEngine) -> None:
        request = engine.finish(self._now_s)
        if (placed := self._placed.pop(request, None)) is not None:
            placed.__exit__()
        self._site.count(request, -1)
        self._arm.ended(request, self._now_s)
        self._source.ended(request)
        self._outcome.requests.append(request)
        assert request.candidate is not None
        self._hand_on(request.candidate.pool)

    def _hand_on(self, pool: str) -> None:
        """Gives the free seat to the request that has waited longest for this pool among others."""
        for place, (request, order) in enumerate(self._waiting):
            candidate = next((one for one in order if one.pool == pool), None)
            if candidate is not None:
                del self._waiting[place]
                self._start(request, candidate)
                return
