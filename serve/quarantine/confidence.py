"""Bounds on a rate that hold at every moment at once, however often one looks: the statistics behind quarantine.

The likelihood of the outcomes, averaged over a Beta prior and divided by their likelihood under rate `p`, is a
martingale when `p` is the true rate; by Ville's inequality it ever reaches 1/alpha with probability at most alpha. The
rates at which it has not reached 1/alpha therefore hold the true one, at all times together, with probability at least
1 - alpha. The prior decides how soon the bounds are narrow, never how often they are wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_HALVINGS = 50


@dataclass(frozen=True)
class Prior:
    """A Beta distribution over the rate of bad answers: as if `bad` and `good` answers had been seen."""

    bad: float
    good: float


UNSUSPECTED = Prior(1, 19)
SUSPECTED = Prior(2, 4)
"""For a pool that an advisory warns of: it is caught sooner if it is bad."""


def lower_bound(bad: int, good: int, alpha: float, prior: Prior = UNSUSPECTED) -> float:
    """The rate of bad answers is ever below this with probability at most `alpha`."""
    if bad == 0:
        return 0.0
    return _edge(bad, good, alpha, prior, outside=0.0)


def upper_bound(bad: int, good: int, alpha: float, prior: Prior = UNSUSPECTED) -> float:
    """The rate of bad answers is ever above this with probability at most `alpha`."""
    if good == 0:
        return 1.0
    return _edge(bad, good, alpha, prior, outside=1.0)


def _edge(bad: int, good: int, alpha: float, prior: Prior, outside: float) -> float:
    """Where, between the observed rate and 0 or 1, the martingale reaches 1/alpha."""
    average = _log_beta(prior.bad + bad, prior.good + good) - _log_beta(prior.bad, prior.good)
    inside = bad / (bad + good)
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if middle == outside:
            break  # no number between the two: the bound is the edge itself, where there is no logarithm
        likelihood = bad * math.log(middle) + good * math.log1p(-middle)
        if average - likelihood >= -math.log(alpha):
            outside = middle
        else:
            inside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
