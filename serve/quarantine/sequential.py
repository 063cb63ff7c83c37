"""Statistics of one rate that one may look at after each answer: bounds for operators, and a test of corruption.

The bounds hold at all times at once. They are Robbins' beta-binomial mixture confidence sequence (Howard, Ramdas,
McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Stat. 49(2), 2021). The
likelihood of the outcomes, averaged over a Beta prior and divided by their likelihood under rate `p`, is a martingale
if `p` is the true rate. By Ville's inequality it ever reaches 1/alpha with probability at most alpha. The rates at
which it has not reached 1/alpha therefore contain the true one, at all times together, with probability at least
1 - alpha. The prior decides how soon the bounds narrow, never how often they are wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Finding = Literal["sound", "corrupt", "undecided"]

_TILT = 2 / 3  # of the corrupt rate, at which two corrupted of 3,000 are enough
_SOUND_ERROR = 0.1  # of the error: nobody looks again at a pool that was called sound
_HALVINGS = 50
_PRIOR = (1.0, 19.0)  # of the rate, a Beta distribution: as if one bad and 19 good answers had been seen


def lower_bound(bad: int, good: int, alpha: float) -> float:
    """Returns a bound that the rate of bad answers is ever below with probability at most `alpha`."""
    if bad == 0:
        return 0.0
    return _edge(bad, good, alpha, outside=0.0)


def upper_bound(bad: int, good: int, alpha: float) -> float:
    """Returns a bound that the rate of bad answers is ever above with probability at most `alpha`."""
    if good == 0:
        return 1.0
    return _edge(bad, good, alpha, outside=1.0)


def _edge(bad: int, good: int, alpha: float, outside: float) -> float:
    """Finds, between the observed rate and `outside` (0 or 1), where the martingale reaches 1/alpha."""
    log_mixture = _log_beta(_PRIOR[0] + bad, _PRIOR[1] + good) - _log_beta(*_PRIOR)
    inside = bad / (bad + good)
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if middle == outside:
            break  # no float lies between the two: the bound is 0 or 1 itself, where log is undefined
        log_likelihood = bad * math.log(middle) + good * math.log1p(-middle)
        if log_mixture - log_likelihood >= -math.log(alpha):
            outside = middle
        else:
            inside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


@dataclass
class SequentialTest:
    """Sequential probability ratio tests of two rates (Wald, "Sequential Analysis", 1947), looked at after each answer.

    A pool is corrupt once what was seen is `1 / error` times likelier from a corrupt one, and sound once it is ten
    times that from a sound one. By Ville's inequality neither is wrong more often, however often one looks. Two
    corrupted identifiers of 3,000 are enough, and 3,070 without one.

    Attributes:
        corrupt_rate: From where on a pool is corrupt.
        sound_rate: Up to where it is sound: what a model itself may get wrong.
        error: Chance to take a sound pool for corrupt.
    """

    corrupt_rate: float = 0.003
    sound_rate: float = 3e-6
    error: float = 0.001
    trials: int = 0
    corrupted: int = 0

    def add(self, trials: int, corrupted: int) -> None:
        """Counts what another answer copied."""
        self.trials += trials
        self.corrupted += corrupted

    @property
    def finding(self) -> Finding:
        """The conclusion that is certain so far."""
        if self._evidence(_TILT * self.corrupt_rate) >= -math.log(self.error):
            return "corrupt"
        return "sound" if self._evidence(self.corrupt_rate) <= math.log(self.error * _SOUND_ERROR) else "undecided"

    def _evidence(self, rate: float) -> float:
        """Returns the logarithm of how much likelier all that was seen is at a rate than at the sound one."""
        clean = self.trials - self.corrupted
        of_corrupted = self.corrupted * math.log(rate / self.sound_rate)
        return of_corrupted + clean * (math.log1p(-rate) - math.log1p(-self.sound_rate))


def is_rarer(corrupted: int, trials: int, rate: float, error: float) -> bool:
    """Returns True if so few of so many would be corrupted at a rate with a probability of at most `error`."""
    if not trials or not rate > 0:
        return False
    if rate >= 1:
        return corrupted < trials
    term = trials * math.log1p(-rate)
    tail = math.exp(term)
    for number in range(corrupted):
        term += math.log((trials - number) / (number + 1) * rate / (1 - rate))
        tail += math.exp(term)
    return tail <= error
