"""One gateway replica's knowledge of the load, for the others: sums that can be merged in any order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from policies.acceptance import AcceptanceTotals
from policies.step_model import StepTotals
from policies.step_model import merged as merged_steps

PoolKey = tuple[str, str]  # model, pool
ClassKey = tuple[str, str, str]  # model, pool, request class

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The figures of one gateway replica, or of several together.

    Attributes:
        running: By pool: requests under way, and the sum of their tokens per step.
    """

    running: Mapping[PoolKey, tuple[float, float]] = field(default_factory=dict)
    steps: Mapping[PoolKey, StepTotals] = field(default_factory=dict)
    acceptance: Mapping[ClassKey, AcceptanceTotals] = field(default_factory=dict)

    def __add__(self, other: LoadReport) -> LoadReport:
        return LoadReport(
            _sum(self.running, other.running, lambda a, b: (a[0] + b[0], a[1] + b[1])),
            _sum(self.steps, other.steps, lambda a, b: merged_steps([a, b])),
            _sum(self.acceptance, other.acceptance, lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2])),
        )


def total(reports: Iterable[LoadReport]) -> LoadReport:
    """Returns the figures of all of them."""
    return sum(reports, LoadReport())


def _sum(one: Mapping[_K, _V], two: Mapping[_K, _V], add: Callable[[_V, _V], _V]) -> Mapping[_K, _V]:
    found = dict(one)
    for key, value in two.items():
        found[key] = add(found[key], value) if key in found else value
    return found
