"""Traffic: how many requests are wanted at a time, of which class and size, and what drafters accept of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from bench.goodput.engine import Request

TOOLS = "tools"
PROSE = "prose"
# Tokens per step with three drafted tokens, as model cards have them (policies/load_model.py).
ACCEPTANCE: Mapping[str, float] = {TOOLS: 3.7, PROSE: 2.5}
_ANSWER_TOKENS: Mapping[str, tuple[int, int]] = {TOOLS: (60, 300), PROSE: (150, 700)}


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of traffic. All functions take the time as a share of the whole, from 0 to 1.

    Attributes:
        name: Its name.
        users: Requests wanted at a time, as a share of all seats.
        tool_share: Share of requests with tools.
        acceptance: Factor on what the drafter accepts beyond the first token.
        agents: Users are agents: classes alternate, and each turn repeats a growing context.
        forbidden: Classes that the advisories keep off the speculative pool.
    """

    name: str
    users: Callable[[float], float]
    tool_share: Callable[[float], float] = lambda _: 0.5
    acceptance: Callable[[float], float] = lambda _: 1.0
    agents: bool = False
    forbidden: frozenset[str] = frozenset()

    def length(self, kind: str, at: float, drafts: int) -> float:
        """Returns the tokens that a request of a class gets a step, the drafter being as good as it is then."""
        if not drafts:
            return 1.0
        return 1.0 + (ACCEPTANCE[kind] - 1.0) * self.acceptance(at)


def _flat(users: float) -> Callable[[float], float]:
    return lambda _: users


LOADS: tuple[Load, ...] = (
    *(Load(f"steady {share:g}", _flat(share)) for share in (0.1, 0.25, 0.5, 0.9)),
    Load("ramp", lambda at: 0.2 + 1.3 * at),
    Load("burst", lambda at: 0.9 if math.sin(at * 12 * math.pi) > 0.3 else 0.15),
    Load("drift", _flat(0.5), tool_share=lambda at: 0.2 + 0.6 * at),
    Load("drafter degrades", _flat(0.5), acceptance=lambda at: 1.0 if at < 0.4 else 0.25),
    Load("agents", _flat(0.4), agents=True),
    Load("tools forbidden", _flat(0.5), forbidden=frozenset({TOOLS})),
)


@dataclass(slots=True)
class Users:
    """Closed-loop users: each sends its next request when the last one is answered.

    Args:
        load: The traffic.
        seed: Of the random numbers.
    """

    load: Load
    seed: int
    _rng: Random = field(init=False)
    _sessions: int = 0
    _free: list[tuple[int, int, str]] = field(default_factory=list)  # agents between two turns

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)

    def next(self, now_s: float, at: float) -> Request:
        """Returns the next request.

        Args:
            now_s: The time.
            at: The same as a share of the whole.
        """
        if self.load.agents:
            return self._turn(now_s)
        kind = TOOLS if self._rng.random() < self.load.tool_share(at) else PROSE
        self._sessions += 1
        return Request(kind, self._tokens(kind), self._rng.randint(50, 400), self._sessions, now_s)

    def answered(self, request: Request) -> None:
        """Tells that a request is answered, so that its conversation can go on."""
        if self.load.agents and request.prompt < 24_000:
            self._free.append((request.session, request.prompt + request.tokens, request.kind))

    def _turn(self, now_s: float) -> Request:
        if self._free and self._rng.random() < 0.95:
            session, context, last = self._free.pop(self._rng.randrange(len(self._free)))
            kind = PROSE if last == TOOLS else TOOLS
            prompt = context + self._rng.randint(50, 600)
        else:
            self._sessions += 1
            session, kind = self._sessions, self._rng.choice((TOOLS, PROSE))
            prompt = self._rng.randint(1000, 3000)
        return Request(kind, self._tokens(kind), prompt, session, now_s)

    def _tokens(self, kind: str) -> int:
        return self._rng.randint(*_ANSWER_TOKENS[kind])
