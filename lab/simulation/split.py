"""The best split of requests of several kinds among pools: few are all tried, many are climbed. Pure."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from math import comb, prod

# Requests that change their pool in one move; and how often the climb starts afresh, not from the last split.
_MOVES = (64, 8, 1)
_AFRESH = 64
_FEW = 500  # splits: all are tried, for one request of few is so much that a climb may end at a lower top
_GAIN = 1e-9  # less is rounding


class Splits:
    """Splits requests among pools so that all pools together yield most; remembers the last split.

    Few requests are split in the best way. So are many between two pools whenever the search starts afresh; until then
    it climbs from the last split, which is quick, and misses a top that no single move or exchange leads to.

    Args:
        rates: For each pool, the steps per second of one request among so many there.
    """

    def __init__(self, rates: Sequence[Callable[[int], float]]) -> None:
        self._rates = rates
        self._pools = range(len(rates))
        self._last: list[list[int]] = []
        self._asked = 0
        self._lengths: list[list[float]] = []
        self._known: dict[tuple[int, ...], list[list[int]]] = {}  # with these lengths

    def best(self, present: Sequence[int], lengths: Sequence[Sequence[float]]) -> list[list[int]]:
        """Returns the number of requests of each kind in each pool.

        Args:
            present: Requests of each kind.
            lengths: Tokens per step of each kind in each pool; 0 where it may not go.
        """
        if prod(map(_ways, present, lengths)) <= _FEW:
            self._last = self._best_of_all(present, lengths)
            return [list(row) for row in self._last]
        starts = [self._adjusted(present, lengths)] if self._last else []
        afresh = self._asked % _AFRESH == 0
        if afresh:
            starts += [_gathered(present, lengths, pool) for pool in self._pools]
        self._asked += 1
        climbs = [_Climb(self._rates, lengths, start) for start in starts]
        self._last = max(climbs, key=lambda climb: climb.top()).split
        if afresh:
            for one, other in combinations(self._pools, 2):
                self._share_out(one, other, lengths)
        return [list(row) for row in self._last]

    def _best_of_all(self, present: Sequence[int], lengths: Sequence[Sequence[float]]) -> list[list[int]]:
        if self._lengths != lengths:
            self._lengths = [list(row) for row in lengths]
            self._known.clear()
        if (key := tuple(present)) not in self._known:
            best = max(product(*map(_rows, present, lengths)), key=lambda split: self._tokens_per_s(split, lengths))
            self._known[key] = [list(row) for row in best]
        return self._known[key]

    def _share_out(self, one: int, other: int, lengths: Sequence[Sequence[float]]) -> None:
        """Splits what two pools have in the best way.

        How many requests each has settles both rates. Then every request is worth a certain sum more in the one than in
        the other, and those that are worth most more go there.
        """
        here = sum(row[one] for row in self._last)
        total = here + sum(row[other] for row in self._last)
        movable = [
            (kind, row[one] + row[other])
            for kind, (row, length) in enumerate(zip(self._last, lengths, strict=True))
            if length[one] and length[other]
        ]
        fixed = here - sum(self._last[kind][one] for kind, _ in movable)
        for requests in range(fixed, fixed + sum(count for _, count in movable) + 1):
            rate, other_rate = self._rates[one](requests), self._rates[other](total - requests)
            movable.sort(key=lambda each: other_rate * lengths[each[0]][other] - rate * lengths[each[0]][one])
            split, left = [list(row) for row in self._last], requests - fixed
            for kind, count in movable:
                taken = min(count, left)
                split[kind][one], split[kind][other] = taken, count - taken
                left -= taken
            if self._tokens_per_s(split, lengths) > self._tokens_per_s(self._last, lengths) + _GAIN:
                self._last = split

    def _tokens_per_s(self, split: Sequence[Sequence[int]], lengths: Sequence[Sequence[float]]) -> float:
        found = 0.0
        for pool, rate in enumerate(self._rates):
            requests, tokens = 0, 0.0
            for row, length in zip(split, lengths, strict=True):
                requests += row[pool]
                tokens += row[pool] * length[pool]
            found += rate(requests) * tokens
        return found

    def _adjusted(self, present: Sequence[int], lengths: Sequence[Sequence[float]]) -> list[list[int]]:
        """Returns the last split with as many requests as there are now."""
        split = [list(row) for row in self._last]
        for row, count, length in zip(split, present, lengths, strict=True):
            for pool in self._pools:
                row[pool] = row[pool] if length[pool] else 0
            fullest = max(self._pools, key=lambda pool: (length[pool] > 0.0, row[pool]))
            row[fullest] += count - sum(row)
            for pool in self._pools:  # more have ended than the fullest pool had
                if row[fullest] < 0:
                    taken = min(row[pool], -row[fullest]) if pool != fullest else 0
                    row[pool] -= taken
                    row[fullest] += taken
        return split


def _ways(count: int, length: Sequence[float]) -> int:
    """Returns how many rows `_rows` would yield."""
    return comb(count + sum(map(bool, length)) - 1, count)


def _rows(count: int, length: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yields every way to spread so many requests of one kind over the pools where they may go."""
    if len(length) == 1:
        if length[0] or not count:
            yield (count,)
        return
    for here in range(count + 1 if length[0] else 1):
        for rest in _rows(count - here, length[1:]):
            yield (here, *rest)


def _gathered(present: Sequence[int], lengths: Sequence[Sequence[float]], pool: int) -> list[list[int]]:
    """Returns the split with all in one pool, or in the first that they may go to."""
    split = []
    for count, length in zip(present, lengths, strict=True):
        place = pool if length[pool] else next(n for n, each in enumerate(length) if each)
        split.append([count if n == place else 0 for n in range(len(length))])
    return split


class _Climb:
    """One way up from a split: as long as moving or exchanging some requests yields more, it is done."""

    def __init__(
        self, rates: Sequence[Callable[[int], float]], lengths: Sequence[Sequence[float]], split: list[list[int]]
    ) -> None:
        self.split = split
        self._rates = rates
        self._lengths = lengths
        pools = range(len(rates))
        self._counts = [sum(row[pool] for row in split) for pool in pools]
        self._sums = [
            sum(row[pool] * length[pool] for row, length in zip(split, lengths, strict=True)) for pool in pools
        ]
        kinds = [kind for kind, row in enumerate(split) if sum(row)]
        self._ways = [
            (kind, here, there)
            for kind, here, there in product(kinds, pools, pools)
            if here != there and lengths[kind][here] and lengths[kind][there]
        ]
        self._exchanges = [
            (one, other, here, there)
            for (one, here, there), (other, back, to) in product(self._ways, self._ways)
            if one < other and (back, to) == (there, here)
        ]

    def top(self) -> float:
        """Climbs; returns the tokens per second there."""
        while any([self._move(*way) for way in self._ways]) or any([self._exchange(*way) for way in self._exchanges]):
            pass
        return self.tokens_per_s()

    def tokens_per_s(self) -> float:
        return sum(self._yield(pool, 0, 0.0) for pool in range(len(self._rates)))

    def _yield(self, pool: int, more: int, length: float) -> float:
        return self._rates[pool](self._counts[pool] + more) * (self._sums[pool] + length)

    def _move(self, kind: int, here: int, there: int) -> bool:
        row, length = self.split[kind], self._lengths[kind]
        moved = False
        for most in _MOVES:
            count = min(most, row[here])
            while count and self._gains(here, -count, -count * length[here], there, count, count * length[there]):
                row[here] -= count
                row[there] += count
                moved = True
                count = min(most, row[here])
        return moved

    def _exchange(self, one: int, other: int, here: int, there: int) -> bool:
        first, second = self.split[one], self.split[other]
        count = min(first[here], second[there])
        if not count:
            return False
        lost = count * (self._lengths[other][here] - self._lengths[one][here])
        won = count * (self._lengths[one][there] - self._lengths[other][there])
        if not self._gains(here, 0, lost, there, 0, won):
            return False
        for row, change in ((first, count), (second, -count)):
            row[here] -= change
            row[there] += change
        return True

    def _gains(self, here: int, less: int, lost: float, there: int, more: int, won: float) -> bool:
        """Makes a change in two pools if it yields more."""
        before = self._yield(here, 0, 0.0) + self._yield(there, 0, 0.0)
        if self._yield(here, less, lost) + self._yield(there, more, won) <= before + _GAIN:
            return False
        self._counts[here] += less
        self._counts[there] += more
        self._sums[here] += lost
        self._sums[there] += won
        return True
