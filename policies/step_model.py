"""Step times of a pool as observed, as a factor on a table by batch: bounded, decayed, and mergeable. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import mul

# A doubling of the batch is one cell: 1, 2-3, 4-7, ... and 512 or more.
_CELLS = 10
# The table's own weight, in answers; and how much less the answers of the neighbouring cell count.
_PRIOR_ANSWERS = 5.0
_NEIGHBOUR = 0.25
_KEPT_PER_ANSWER = 0.5 ** (1 / 200)
# Where answers are few, what is known fades with time, but never below so many.
_LEAST_ANSWERS = 20.0
_LARGEST = math.log(16)  # a table that is off by more is not of this engine, or the observation is wrong
_CLIP = 0.5  # a slow client or a long queue makes one answer look slow; it moves the mean by this at most

StepTotals = tuple[tuple[float, float], ...]  # by cell: weight of the answers, weighted sum of the factors' logarithms

_NOTHING: StepTotals = ((0.0, 0.0),) * _CELLS
_REACH = tuple(tuple(_NEIGHBOUR ** abs(cell - other) for other in range(_CELLS)) for cell in range(_CELLS))


class StepModel:
    """The factor between the step times of a pool and those of a table, learned from answers.

    Cells without answers follow their neighbours, so that an engine that is twice as slow is so at every batch.
    """

    __slots__ = ("_factors", "_others", "_own", "answers")

    def __init__(self) -> None:
        self.answers = 0
        self._own = [[0.0, 0.0] for _ in range(_CELLS)]
        self._others: StepTotals = _NOTHING
        self._factors: list[float] = []  # by cell; empty until somebody asks after an answer

    def learn(self, batch: float, ratio: float) -> None:
        """Counts one answer: the sequences on its engine meanwhile, and the time of its steps as a share of the
        table's.
        """
        if not (ratio > 0 and math.isfinite(ratio) and math.isfinite(batch)):
            return
        cell = _cell(batch)
        known = self._fit(cell)
        observed = known + min(max(math.log(ratio) - known, -_CLIP), _CLIP)
        for entry in self._own:
            entry[0] *= _KEPT_PER_ANSWER
            entry[1] *= _KEPT_PER_ANSWER
        self._own[cell][0] += 1.0
        self._own[cell][1] += observed
        self.answers += 1
        self._factors.clear()

    def fade(self, kept: float) -> None:
        """Keeps a share of the weight of what is known, so that few answers suffice to correct it."""
        weight = sum(answers for answers, _ in self._own)
        if weight > _LEAST_ANSWERS:
            kept = max(kept, _LEAST_ANSWERS / weight)
            self._own = [[answers * kept, factors * kept] for answers, factors in self._own]

    def merge(self, others: StepTotals) -> None:
        """Takes what all other gateway replicas have counted, in place of what they had before."""
        self._others = others or _NOTHING
        self._factors.clear()

    def factor(self, batch: float) -> float:
        """Returns the factor on the table's step time at a batch."""
        return self._known()[_cell(batch)]

    def scaled(self, table: Sequence[float]) -> tuple[float, ...]:
        """Returns the step times of a table, which has one for each batch from 0 on, times their factors."""
        return tuple(map(mul, table, chain.from_iterable(map(repeat, self._known(), _batches(len(table))))))

    @property
    def totals(self) -> StepTotals:
        """Returns what this replica has counted, for others."""
        return tuple((weight, total) for weight, total in self._own)

    def _known(self) -> list[float]:
        if not self._factors:
            self._factors = [math.exp(self._fit(cell)) for cell in range(_CELLS)]
        return self._factors

    def _fit(self, cell: int) -> float:
        """Returns the logarithm of a cell's factor."""
        weight, total = _PRIOR_ANSWERS, 0.0
        for (answers, factors), (more, further), share in zip(self._own, self._others, _REACH[cell], strict=True):
            weight += (answers + more) * share
            total += (factors + further) * share
        return min(max(total / weight, -_LARGEST), _LARGEST)


def merged(totals: Sequence[StepTotals]) -> StepTotals:
    """Returns the sum of several replicas' totals, in whatever order they come."""
    cells = list(_NOTHING)
    for each in totals:
        for cell, (weight, total) in enumerate(each):
            cells[cell] = (cells[cell][0] + weight, cells[cell][1] + total)
    return tuple(cells)


def _cell(batch: float) -> int:
    return min(int(math.log2(max(batch, 1.0))), _CELLS - 1)


@lru_cache(maxsize=64)
def _batches(batches: int) -> tuple[int, ...]:
    """Returns how many of the batches from 0 on each cell has."""
    counts = Counter(map(_cell, range(batches)))
    return tuple(counts[cell] for cell in range(_CELLS))
