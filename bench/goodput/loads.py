"""Loads: how many requests are wanted at a time, of which class, and what drafters accept."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lab.simulation.request import ACCEPTANCE, PROSE, TOOLS, Drafter, SimRequest
from lab.simulation.simulation import Source

_ANSWER_TOKENS: Mapping[str, tuple[int, int]] = {TOOLS: (60, 300), PROSE: (150, 700)}
_TICK_S = 0.05  # how often the number of users is looked at
_LONGEST_PROMPT = 24_000
_ANSWER_S = 1.0  # about what an answer takes at low load


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of traffic. Functions take the time as a share of the whole, from 0 to 1.

    Attributes:
        name: Its name.
        users: Requests wanted at a time, as a share of all seats.
        tool_share: Share of requests with tools.
        acceptance: (from when, factor on what the drafter accepts beyond the first token), in order of time.
        prompt: Fewest and most tokens of a prompt, agents' aside.
        changes_at: When the traffic or the drafter changes for good, if it does.
        agents: Users are agents: classes alternate, and each turn repeats a growing context.
        forbidden: The policy keeps tools off the speculative pool.
        chance: Requests come by chance, not when others are answered: users who wait for an engine's answer come back
            just as one of its steps ends, so that the times to their first tokens depend on who shares an engine.
    """

    name: str
    users: Callable[[float], float]
    tool_share: Callable[[float], float] = lambda _: 0.5
    acceptance: Sequence[tuple[float, float]] = ((0.0, 1.0),)
    prompt: tuple[int, int] = (50, 400)
    changes_at: float | None = None
    agents: bool = False
    forbidden: bool = False
    chance: bool = False

    def source(self, seed: int, seats: int, duration_s: float) -> Source:
        """Returns the requests of a run.

        Args:
            seed: Of the random numbers.
            seats: Of all engines.
            duration_s: Length of the run.
        """
        return (Chance if self.chance else Users)(self, seed, seats, duration_s)

    def drafter(self, duration_s: float) -> Drafter:
        """Returns what the drafter accepts in a run of so many seconds."""
        return Drafter(
            [
                (at * duration_s, {kind: (chances[0] * factor, *chances[1:]) for kind, chances in ACCEPTANCE.items()})
                for at, factor in self.acceptance
            ]
        )


def _flat(users: float) -> Callable[[float], float]:
    return lambda _: users


_THIRD = 1 / 3

LOADS: tuple[Load, ...] = (
    *(Load(f"steady {share:g}", _flat(share)) for share in (0.02, 0.1, 0.25, 0.5, 0.9)),
    Load("2 % by chance", _flat(0.02), chance=True),
    Load("ramp", lambda at: 0.2 + 1.3 * at),
    Load("burst", lambda at: 0.9 if math.sin(at * 12 * math.pi) > 0.3 else 0.15),
    Load("drift", _flat(0.5), tool_share=lambda at: 0.2 + 0.6 * at),
    Load("mix flips", _flat(0.5), tool_share=lambda at: 0.1 if at < _THIRD else 0.9, changes_at=_THIRD),
    Load("classes in bursts", _flat(0.5), tool_share=lambda at: 0.95 if at * 12 % 2 < 1 else 0.05),
    Load("tools alone", _flat(0.5), tool_share=lambda _: 1.0),
    Load("prose alone", _flat(0.5), tool_share=lambda _: 0.0),
    Load("long prompts", _flat(0.1), prompt=(4_000, 24_000)),
    Load("drafter degrades", _flat(0.5), acceptance=((0.0, 1.0), (_THIRD, 0.25)), changes_at=_THIRD),
    Load("drafter recovers", _flat(0.1), acceptance=((0.0, 1.0), (1 / 6, 0.05), (0.5, 1.0)), changes_at=0.5),
    Load("drafter is misjudged", _flat(0.5), acceptance=((0.0, 0.3),)),
    Load("agents", _flat(0.4), agents=True),
    Load("tools forbidden", _flat(0.5), forbidden=True),
)


class Users:
    """Closed-loop users: each sends its next request when the last one is answered.

    Args:
        load: The traffic.
        seed: Of the random numbers.
        seats: Of all engines.
        duration_s: Length of the run.
    """

    def __init__(self, load: Load, seed: int, seats: int, duration_s: float) -> None:
        self._load = load
        self._rng = Random(seed)
        self._seats = seats
        self._duration_s = duration_s
        self._sessions = 0
        self._present = 0
        self._now_s = 0.0
        self._free: list[SimRequest] = []  # last turns of agents between two turns

    def next_s(self) -> float:
        """Returns when the number of users is looked at next."""
        return self._now_s if self._present < self._wanted() else self._now_s + _TICK_S

    def due(self, now_s: float) -> Sequence[SimRequest]:
        """Returns the requests of those users who have none under way."""
        self._now_s = now_s
        found = [self._next() for _ in range(self._wanted() - self._present)]
        self._present += len(found)
        return found

    def ended(self, request: SimRequest) -> None:
        """Tells that a request is answered, so that its conversation can go on."""
        self._now_s = request.end_s
        self._present -= 1
        if self._load.agents and request.prompt_tokens < _LONGEST_PROMPT:
            self._free.append(request)

    def _wanted(self) -> int:
        return math.ceil(self._load.users(self._now_s / self._duration_s) * self._seats)

    def _next(self) -> SimRequest:
        if self._load.agents:
            return self._turn()
        at = self._now_s / self._duration_s
        kind = TOOLS if self._rng.random() < self._load.tool_share(at) else PROSE
        return self._request(self._new_session(), kind, self._rng.randint(*self._load.prompt))

    def _turn(self) -> SimRequest:
        if self._free and self._rng.random() < 0.95:
            last = self._free.pop(self._rng.randrange(len(self._free)))
            kind = PROSE if last.kind == TOOLS else TOOLS
            prompt = last.prompt_tokens + last.output_tokens + self._rng.randint(50, 600)
            return self._request(last.session, kind, prompt)
        kind = self._rng.choice((TOOLS, PROSE))
        return self._request(self._new_session(), kind, self._rng.randint(1000, 3000))

    def _new_session(self) -> str:
        self._sessions += 1
        return f"session {self._sessions}"

    def _request(self, session: str, kind: str, prompt: int) -> SimRequest:
        return SimRequest(self._now_s, session, kind, prompt, self._rng.randint(*_ANSWER_TOKENS[kind]))


class Chance(Users):
    """Users who come by chance, and do not wait for each other's answers; `Load.users` of them are there on average.

    Args:
        load: The traffic.
        seed: Of the random numbers.
        seats: Of all engines.
        duration_s: Length of the run.
    """

    def __init__(self, load: Load, seed: int, seats: int, duration_s: float) -> None:
        super().__init__(load, seed, seats, duration_s)
        self._next_s = 0.0

    def next_s(self) -> float:
        """Returns when the next one comes."""
        return self._next_s

    def due(self, now_s: float) -> Sequence[SimRequest]:
        """Returns the request of the one who comes now."""
        self._now_s = now_s
        self._next_s = now_s + self._rng.expovariate(self._wanted() / _ANSWER_S)
        return [self._next()]
