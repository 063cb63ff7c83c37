"""The Wilson score interval of a rate, such as the share of clean answers."""

from math import sqrt

_Z = 1.96  # standard normal quantile


def wilson(clean: int, n: int) -> tuple[float, float]:
    """Returns the bounds of a rate after `clean` of `n` trials, with 95 % confidence; (0, 1) before the first."""
    if n == 0:
        return 0.0, 1.0
    rate = clean / n
    spread = _Z * _Z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = _Z * sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
