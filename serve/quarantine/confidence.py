"""Confidence bounds on a rate that hold at all times at once, however often one looks; shown to operators.

This is Robbins' beta-binomial mixture confidence sequence (Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", Ann. Stat. 49(2), 2021). The likelihood of the outcomes, averaged
over a Beta prior and divided by their likelihood under rate `p`, is a martingale if `p` is the true rate. By Ville's
inequality it ever reaches 1/alpha with probability at most alpha. The rates at which it has not reached 1/alpha
therefore contain the true one, at all times together, with probability at least 1 - alpha. The prior decides how soon
the bounds narrow, never how often they are wrong.
"""

from __future__ import annotations

import math

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
