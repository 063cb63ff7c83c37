"""The Wilson score interval of a rate, such as the share of clean answers."""

from math import sqrt


def wilson(clean: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the lower and upper bound of a rate after `clean` of `n` trials; (0, 1) before the first. A standard
    normal quantile `z` of 1.96 gives 95 %.
    """
    if n == 0:
        return 0.0, 1.0
    rate = clean / n
    spread = z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
