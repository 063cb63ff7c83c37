"""Evidence that a pool is worse than the reference, or no longer much worse: a bet that chance decides.

Chance alone says which of the two answers a request first, so whatever the request is, whoever sends it, and whatever
was sent before, each trial yields two numbers whose expectation is the difference of the two pools' error rates for it:

- of failures: 1/p if the pool failed and the reference did not, -1/q if it is the other way round, else 0;
- of clean answers: -1/p if the pool's was clean, 1/q if the reference's was, else 0,

where p is the chance that the pool answered first, and q = 1 - p. A bettor who stakes a fixed share of a capital on
these numbers being above a bound can't gain in expectation as long as the difference is at most that bound: the capital
is a nonnegative supermartingale, and reaches 1/alpha with probability at most alpha, however often one looks (Ville's
inequality; Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", Statist.
Sci. 38(4), 2023). Without a margin, the best stakes give the likelihood ratio of who answered first, given how the
answer was: the growth-optimal test of two rates (Turner, Ly and Grünwald, "Generic E-variables for exact sequential
k-sample tests that allow for optional stopping", JSPI 230, 2024).

Nobody knows the best stakes, so the capital is spread over several, and over several moments to begin, so that an old
record can't hide a new fault. How it is spread decides how soon the test decides, never how often it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import add, mul
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

Side = Literal["worse", "no_worse"]
Count = Annotated[int, Meta(ge=0, lt=2**53)]  # which JSON can tell


class TrialCounts(NamedTuple):
    """Numbers of trials by who answered first and how.

    Attributes:
        own_good, reference_good: The first answer was clean.
        own_bad, reference_bad: It was broken, and as far as that was tried, the other pool's was not.
        own_both, reference_both: It was broken, and so was the other pool's.
        own_unseen, reference_unseen: It was broken, and nobody knows how the other pool's would have been.
        own_absent, reference_absent: The pool did not answer, so that another had to.
        own_left, reference_left: The first answer was given up before its end.
    """

    own_good: Count = 0
    own_bad: Count = 0
    own_both: Count = 0
    own_unseen: Count = 0
    own_absent: Count = 0
    own_left: Count = 0
    reference_good: Count = 0
    reference_bad: Count = 0
    reference_both: Count = 0
    reference_unseen: Count = 0
    reference_absent: Count = 0
    reference_left: Count = 0

    def __add__(self, other: TrialCounts) -> TrialCounts:  # type: ignore[override]
        return TrialCounts(*map(sum, zip(self, other, strict=True)))

    @property
    def own(self) -> int:
        return sum(self[:6])

    @property
    def reference(self) -> int:
        return sum(self[6:])

    @property
    def left_as_bad(self) -> TrialCounts:
        """The same, every answer that was given up counted as broken."""
        return self._replace(
            own_bad=self.own_bad + self.own_left, own_left=0,
            reference_bad=self.reference_bad + self.reference_left, reference_left=0,
        )  # fmt: skip

    @property
    def own_failures(self) -> int:
        return self.own_bad + self.own_both

    @property
    def reference_failures(self) -> int:
        return self.reference_bad + self.reference_both


class Stakes(NamedTuple):
    """The spread of the capital.

    Attributes:
        failures: Shares of the most that may be staked on failures, each with its weight.
        clean: Likewise on clean answers: by how much more often, relatively, the reference's are.
        first: Share that is staked from the beginning of a window; the rest is from later moments on.
    """

    failures: tuple[tuple[float, float], ...]
    clean: tuple[tuple[float, float], ...]
    first: float


# As good for a difference of 5 points as for one of 50, at any rate: simulated by `python -m bench.quarantine`.
_CLEAN = ((0.0, 2), (0.1, 3), (0.5, 1), (2.0, 1), (8.0, 0.5))
UNSUSPECTED = Stakes(((0.1, 1.5), (0.3, 1), (0.6, 1), (0.95, 1)), _CLEAN, first=0.6)
# For a pool that an advisory warns of: if it is bad, it is bad often, and from the beginning.
SUSPECTED = Stakes(((0.1, 1.5), (0.3, 1), (0.6, 1), (0.95, 2)), _CLEAN, first=0.8)
# For a pool that is out, and probably as good as ever.
RETURNING = Stakes(
    failures=((0.05, 1), (0.15, 1), (0.5, 1), (0.95, 2)), clean=((0.0, 2), (0.05, 1), (0.15, 1), (0.4, 1)), first=0.6
)

_LEAST = 0.02  # of a stake's capital is left after the worst trial
_MOST = 690.0  # beyond e to the power of that, a float is no number any more


@dataclass(frozen=True, eq=False)
class Bets:
    """Bets on one side of a bound.

    Attributes:
        factors: For each of them, the logarithm of what a trial of each kind makes of its capital.
    """

    first: float
    weights: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]

    def gain(self, trials: TrialCounts) -> float:
        """Returns what these trials make of a capital of 1."""
        return self.spread(_logs(self, trials))

    def spread(self, logs: Iterable[float]) -> float:
        """Returns the capital of all stakes together, given the logarithm of each."""
        return sum(weight * math.exp(min(log, _MOST)) for weight, log in zip(self.weights, logs, strict=True))


@lru_cache(maxsize=4096)  # of a window's blocks, only the last one changes
def _logs(bets: Bets, trials: TrialCounts) -> list[float]:
    return [sum(map(mul, trials, factors)) for factors in bets.factors]


def capital(blocks: Sequence[TrialCounts], starts: int, bets: Bets) -> float:
    """Returns what a capital of 1 has become, be answers that were given up left out or counted as broken.

    It is the smaller of the two: whoever sees who answers could otherwise give up what does not suit him. Trials are in
    their order, cut into blocks where bets may begin; the capital is spread over the beginnings of all `starts` blocks
    that there may be.
    """
    plain = _capital(blocks, starts, bets)
    strict = [block.left_as_bad for block in blocks]
    return plain if strict == list(blocks) else min(plain, _capital(strict, starts, bets))


def _capital(blocks: Sequence[TrialCounts], starts: int, bets: Bets) -> float:
    first = bets.first
    later = (1.0 - first) / (starts - 1)
    logs = accumulate((_logs(bets, block) for block in reversed(blocks)), lambda *each: list(map(add, *each)))
    gains = [bets.spread(each) for each in logs][::-1]
    staked = first * sum(gains[:1]) + later * sum(gains[1:])
    waiting = first * (not gains) + later * (starts - max(len(gains), 1))
    return staked + waiting


@lru_cache(maxsize=64)
def bets(side: Side, bound: float, own_share: float, stakes: Stakes) -> Bets:
    """Returns bets that gain nothing, in expectation, while the difference is on the other side of the bound.

    Args:
        side: `worse`: that the difference is above the bound. `no_worse`: that it is below it.
        bound: On the difference of the error rates, the pool's less the reference's.
        own_share: Chance that the pool, not the reference, answers a trial first.
        stakes: How the capital is spread.
    """
    sign = 1.0 if side == "worse" else -1.0
    pairs = [(sign * (failures - bound), sign * (clean - bound)) for failures, clean in _numbers(own_share, side)]
    most = -1.0 / min(failures for failures, _ in pairs)
    made = []
    for share, weight in stakes.failures:
        for excess, other in stakes.clean:
            changes = [share * most * failures + excess * (1.0 - own_share) * clean for failures, clean in pairs]
            scale = min(1.0, (1.0 - _LEAST) / -min(changes))
            made.append((weight * other, tuple(math.log1p(scale * change) for change in changes)))
    whole = sum(weight for weight, _ in made)
    return Bets(stakes.first, tuple(weight / whole for weight, _ in made), tuple(factors for _, factors in made))


def _numbers(own_share: float, side: Side) -> Iterable[tuple[float, float]]:
    """Returns what each kind of trial says of the difference: by failures, and by clean answers.

    What nobody saw counts as what speaks most for the status quo. Otherwise it could be decided by who is asked when a
    pool does not answer, or by a client that leaves between an answer and its rerun.
    """
    own, reference = 1.0 / own_share, -1.0 / (1.0 - own_share)
    reply = {
        "own_good": (0.0, -own),
        "own_bad": (own, 0.0),
        "reference_good": (0.0, -reference),
        "reference_bad": (reference, 0.0),
    }
    if side == "worse":
        unseen = {"own_absent": "own_good", "reference_unseen": "reference_bad", "reference_absent": "reference_bad"}
    else:
        unseen = {"own_absent": "own_bad", "own_unseen": "own_bad", "reference_absent": "reference_good"}
    return [reply.get(unseen.get(kind, kind), (0.0, 0.0)) for kind in TrialCounts._fields]
