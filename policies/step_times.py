"""The time of an engine's step by batch and draft length: a table, and the factor on it that answers show. Pure.

The factor is bounded, decayed, and can be merged with what other replicas have counted.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from operator import mul


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one engine step, measured at some draft lengths and batch sizes; linear between them and beyond.

    Attributes:
        drafts: Draft lengths, ascending from 0.
        batches: Sequences in the batch, ascending; at least two.
        step_s: Seconds, a row for each draft length and a column for each batch.
    """

    drafts: tuple[int, ...]
    batches: tuple[int, ...]
    step_s: tuple[tuple[float, ...], ...]

    def at(self, batch: float, drafts: int) -> float:
        """Returns the seconds of one step. A batch of less than one sequence counts as one."""
        batch = max(batch, 1.0)
        row, between = _place(self.drafts, drafts)
        low = self._row(row, batch)
        return low if not between else low + between * (self._row(row + 1, batch) - low)

    def _row(self, row: int, batch: float) -> float:
        times = self.step_s[row]
        column, between = _place(self.batches, batch)
        return times[column] + between * (times[column + 1] - times[column])


def _place(values: Sequence[int], value: float) -> tuple[int, float]:
    """Returns the value's place among ascending ones, as an index and a fraction; beyond the last one it exceeds 1."""
    index = min(max(bisect_right(values, value) - 1, 0), len(values) - 2)
    return index, (value - values[index]) / (values[index + 1] - values[index])


# vllm#32374: inter-token latency of Llama-3.1-8B with EAGLE, K = 0, 1, 3, 5. A dense model; mixture-of-experts pays
# more for verification. A default for its shape: how batch and draft length trade against each other.
PUBLISHED = StepTimes(
    drafts=(0, 1, 3, 5),
    batches=(1, 4, 16, 64, 256),
    step_s=(
        (0.00652, 0.00660, 0.00690, 0.00777, 0.01449),
        (0.00737, 0.00747, 0.00785, 0.00966, 0.02714),
        (0.00884, 0.00898, 0.00952, 0.01350, 0.04185),
        (0.01033, 0.01040, 0.01120, 0.01683, 0.05740),
    ),
)

# Tokens that one engine prefills in a second. Assumed, not published: only its order of magnitude matters here.
PREFILL_TOKENS_PER_S = 20_000.0


@lru_cache(maxsize=256)  # asked for once a second by each pool
def step_times(times: StepTimes, drafts: int, seats: int) -> tuple[float, ...]:
    """Returns the seconds of one step of one replica, by the number of sequences in the batch, from 0 to its seats. A
    draft length of 0 is no speculation.
    """
    return tuple(times.at(batch, drafts) for batch in range(seats + 1))


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
