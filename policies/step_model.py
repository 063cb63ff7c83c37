"""Step times of a pool as observed, as a factor on a table by batch: bounded, decayed, and mergeable. Pure."""

import math
from collections.abc import Sequence

# A doubling of the batch is one cell: 1, 2-3, 4-7, ... and 512 or more.
_CELLS = 10
# The table's own weight, in answers; and how much less the answers of the neighbouring cell count.
_PRIOR_ANSWERS = 5.0
_NEIGHBOUR = 0.25
_KEPT_PER_ANSWER = 0.5 ** (1 / 200)
_LARGEST = math.log(16)  # a table that is off by more is not of this engine, or the observation is wrong
_CLIP = 0.5  # a slow client or a long queue makes one answer look slow; it moves the mean by this at most

StepTotals = tuple[tuple[float, float], ...]  # by cell: weight of the answers, weighted sum of the factors' logarithms

_REACH = tuple(tuple(_NEIGHBOUR ** abs(cell - other) for other in range(_CELLS)) for cell in range(_CELLS))


class StepModel:
    """The factor between the step times of a pool and those of a table, learned from answers.

    Cells without answers follow their neighbours, so that an engine that is twice as slow is so at every batch.
    """

    __slots__ = ("_factors", "_others", "_own", "answers")

    def __init__(self) -> None:
        self.answers = 0
        self._own = [[0.0, 0.0] for _ in range(_CELLS)]
        self._others: StepTotals = ()
        self._factors = [1.0] * _CELLS

    def learn(self, batch: float, ratio: float) -> None:
        """Counts one answer.

        Args:
            batch: Sequences on the engine meanwhile.
            ratio: The time of its steps, as a share of the table's.
        """
        if not (ratio > 0 and math.isfinite(ratio) and math.isfinite(batch)):
            return
        cell = _cell(batch)
        known = math.log(self._factors[cell])
        observed = known + min(max(math.log(ratio) - known, -_CLIP), _CLIP)
        for entry in self._own:
            entry[0] *= _KEPT_PER_ANSWER
            entry[1] *= _KEPT_PER_ANSWER
        self._own[cell][0] += 1.0
        self._own[cell][1] += observed
        self.answers += 1
        self._fit()

    def hear(self, others: StepTotals) -> None:
        """Takes what all other gateway replicas have counted, in place of what they had before."""
        self._others = others
        self._fit()

    def factor(self, batch: float) -> float:
        """Returns the factor on the table's step time at a batch."""
        return self._factors[_cell(batch)]

    @property
    def totals(self) -> StepTotals:
        """What this replica has counted, for others."""
        return tuple((weight, total) for weight, total in self._own)

    def _fit(self) -> None:
        cells = merged([self.totals, self._others])
        for cell, reach in enumerate(_REACH):
            weight, total = _PRIOR_ANSWERS, 0.0
            for (answers, factors), share in zip(cells, reach, strict=True):
                weight += answers * share
                total += factors * share
            self._factors[cell] = math.exp(min(max(total / weight, -_LARGEST), _LARGEST))


def merged(totals: Sequence[StepTotals]) -> StepTotals:
    """Returns the sum of several replicas' totals, in whatever order they come."""
    cells = [(0.0, 0.0)] * _CELLS
    for each in totals:
        for cell, (weight, total) in enumerate(each):
            cells[cell] = (cells[cell][0] + weight, cells[cell][1] + total)
    return tuple(cells)


def _cell(batch: float) -> int:
    return min(int(math.log2(max(batch, 1.0))), _CELLS - 1)
