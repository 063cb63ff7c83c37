"""What one gateway replica has learned of a policy's pools, from answers and from other replicas. Bounded.

To the others it is a report: sums that can be merged in any order.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from policies import Policy
from policies.acceptance import NOTHING, Acceptance, AcceptanceTotals, AnswerLength, prior_length
from policies.classes import class_of_names
from policies.step_times import StepModel, StepTotals
from policies.step_times import merged as merged_steps

log = logging.getLogger("ray.serve.specgate.load")

_CLASSES = 1024  # pools x classes: callers choose the classes
# Where answers are few, the weight of what is known is halved in this time: a change must show within a minute.
_HALF_LIFE_S = 15.0
_UNSTATED_DRAFTS = 16  # of a pool that speculates and does not say how far

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


class Learned:
    """Tokens per step and of answers by class, and step times by pool.

    Attributes:
        drafts: Draft length by model and pool; 0 without speculation.
    """

    def __init__(self) -> None:
        self.steps: dict[PoolKey, StepModel] = {}
        self.drafts: dict[PoolKey, int] = {}
        self._acceptance: OrderedDict[tuple[str, str, str], Acceptance] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], AnswerLength] = OrderedDict()
        self._collapsed: set[tuple[str, str, str]] = set()
        self._heard = LoadReport()

    def adopt(self, policy: Policy) -> None:
        """Takes the draft lengths of another policy."""
        before = self.drafts.copy()
        for facts in policy.facts:
            key = (facts.model, facts.pool)
            self.drafts[key] = (facts.num_speculative_tokens or 0) if facts.speculative else 0
            self.steps.setdefault(key, StepModel())
        for (model, pool, request_class), found in self._acceptance.items():
            key = model, pool
            if request_class and self.drafts[key] != before.get(key):
                found.expect(*self._expected(key, class_of_names(tuple(request_class.split("+")))[1]))

    def acceptance(self, pool: PoolKey, request_class: str, mask: int, speculative: bool) -> Acceptance:
        """Returns the drafts accepted in a pool. Requests that are not speculative do not speculate there, whatever the
        pool does.
        """
        key = (*pool, request_class if speculative else "")
        found = self._acceptance.get(key)
        if found is None:
            expected = self._expected(pool, mask) if speculative else (1.0, 0)
            found = _added(self._acceptance, key, Acceptance(*expected))
            found.merge(self._heard.acceptance.get(key, NOTHING))
        return found

    def _expected(self, pool: PoolKey, mask: int) -> tuple[float, int]:
        """Returns the tokens per step expected of a pool that speculates, and the tokens of a draft at most."""
        drafts = self.drafts[pool]
        return prior_length(mask, drafts), drafts or _UNSTATED_DRAFTS

    def answers(self, model: str, request_class: str) -> AnswerLength:
        """Returns the length of a model's answers to requests of a class."""
        key = (model, request_class)
        return self._answers.get(key) or _added(self._answers, key, AnswerLength())

    def each(self) -> Iterator[tuple[str, str, str, Acceptance]]:
        """Yields (model, pool, request class, drafts accepted)."""
        for (model, pool, request_class), found in list(self._acceptance.items()):
            yield model, pool, request_class, found

    def report(self) -> LoadReport:
        """Returns what was learned here, for the others."""
        return LoadReport(
            {},
            {key: model.totals for key, model in self.steps.items() if model.answers},
            {key: found.totals for key, found in self._acceptance.items() if found.answers},
        )

    def merge(self, others: LoadReport) -> None:
        """Takes what all other gateway replicas have learned."""
        self._heard = others
        for key, model in self.steps.items():
            model.merge(others.steps.get(key, ()))
        for class_key, found in self._acceptance.items():
            found.merge(others.acceptance.get(class_key, NOTHING))

    def fade(self, elapsed_s: float) -> None:
        """Lets what is known fade, so that a change shows soon where answers are few."""
        elapsed_s = max(elapsed_s, 0.0)
        kept = 0.5 ** (elapsed_s / _HALF_LIFE_S)
        for model in self.steps.values():
            model.fade(kept)
        for found in self._acceptance.values():
            found.fade(kept, elapsed_s)

    def warn(self) -> None:
        """Logs every drafter whose acceptance has collapsed since the last call."""
        collapsed = {key for key, found in self._acceptance.items() if found.collapsed}
        for model, pool, request_class in sorted(collapsed - self._collapsed):
            found = self._acceptance[model, pool, request_class]
            log.warning(
                "%s/%s: drafts for %s are accepted less than half as often as expected: %.2f tokens per step, not %.2f",
                model, pool, request_class, found.length, found.prior,
            )  # fmt: skip
        self._collapsed = collapsed


def _added(known: OrderedDict[_K, _V], key: _K, value: _V) -> _V:
    """Adds a value; the oldest one goes if there are too many."""
    known[key] = value
    if len(known) > _CLASSES:
        known.popitem(last=False)
    return value
