"""Measurements that carry `proven`, or do not: a drafter's answers are as often clean as those without it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from lab.probe.interval import wilson

MARGIN = 0.05  # the share of answers that speculation may cost and still count as clean


@dataclass(frozen=True)
class Comparison:
    """Clean answers of one request class on one model, with speculation and without.

    Attributes:
        stream: Streamed or whole answers.
        temperature: Sampling temperature.
        drafted: Tokens that the drafter proposed.
        accepted: Of them, tokens that the model accepted.
        interval: 95 % Wilson interval of the clean rate with speculation.
        standard_interval: The same without.
        difference: 95 % interval of the clean rate with speculation less that without.
    """

    model: str
    request_class: str
    stream: bool
    temperature: float
    drafted: int
    accepted: int
    clean: int
    n: int
    interval: tuple[float, float]
    standard_clean: int
    standard_n: int
    standard_interval: tuple[float, float]
    difference: tuple[float, float]

    @property
    def carries(self) -> bool:
        """True if tokens were drafted, and no more answers were lost than the margin allows, with 95 % confidence."""
        return self.drafted > 0 and self.difference[0] > -MARGIN


def difference(clean: int, n: int, other_clean: int, other_n: int) -> tuple[float, float]:
    """Returns Newcombe's 95 % interval of one rate less another; (-1, 1) if there are no trials of one of them.

    Args:
        clean: Trials of the first rate that succeeded.
        n: All of its trials.
        other_clean: Those of the second rate.
        other_n: All of its trials.
    """
    if not n or not other_n:
        return -1.0, 1.0
    rate, other = clean / n, other_clean / other_n
    low, high = wilson(clean, n)
    other_low, other_high = wilson(other_clean, other_n)
    below = sqrt((rate - low) ** 2 + (other_high - other) ** 2)
    above = sqrt((high - rate) ** 2 + (other - other_low) ** 2)
    return rate - other - below, rate - other + above


def proven(rows: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Returns the request classes that are proven of each model: streamed and whole, at every temperature.

    Args:
        rows: Comparisons as they are saved.
    """
    carried: dict[str, set[str]] = {}
    failed: dict[str, set[str]] = {}
    for row in rows:
        names = (carried if row["carries"] else failed).setdefault(row["model"], set())
        names.add(row["request_class"])
    return {model: names - failed.get(model, set()) for model, names in carried.items()}
