"""The limits of one cluster, in memory: a token bucket for each rate, and the seats of each concurrency. No I/O."""

import time
from collections.abc import Callable, Mapping

from serve.limits.ledger_messages import Grant, Grants, Holding, LimitId, LimitTerms, Statement
from serve.shared.report import Report

FORGET_S = 4.0  # after which the seats of a silent replica are free: three reports missed, and a little for the network
_SEAT_WAIT_S = 1.0  # nobody knows when a request ends
_IDLE_S = 600.0  # after which what nobody asks for is as good as new, unless it owes something
_SWEEP_S = 60.0
_SET_ASIDE = 0.5  # of what flows in, so that nobody else loses more than that
_GRACE_S = 3.0  # after the time that the request was given, for its client to come again


class Bucket:
    """The part of one rate that may be spent; it fills continuously and may go into debt.

    Over any time, no more is given than rate x time + capacity; a single amount above the capacity, which passes when
    the bucket is full, adds what it has above that.

    Small requests take whatever flows in as soon as it is enough for one of them. So half of the rate is set aside for
    the largest request that was refused: smaller ones leave that in the bucket, until it has come again and passed, or
    has stayed away. Its clock may be any that never goes back.

    Attributes:
        level: What is there, as of the last call; below zero it is a debt.
    """

    def __init__(self, terms: LimitTerms, now_s: float) -> None:
        self.terms = terms
        self.level = terms.capacity
        self._at_s = now_s
        self._has_given = False
        self._start: float | None = None  # the level that another ledger's bucket had
        self._largest = 0.0  # of the requests that were refused
        self._refused_s = 0.0
        self._until_s = 0.0

    def refill(self, now_s: float) -> float:
        """Lets in what has come since the last call; returns the level."""
        rate_per_s, capacity = self.terms
        if self.level < capacity:
            self.level = min(capacity, self.level + rate_per_s * (now_s - self._at_s))
        self._at_s = now_s
        return self.level

    def book(self, holding: Holding, age_s: float | None, now_s: float) -> None:
        """Takes over what a replica has drawn and given back.

        A bucket that has given nothing yet goes on with the debt of one before it, the deepest that any replica knows
        of. What lay in that is forgotten, since nobody knows how much of it was given away. The level may be above the
        capacity until everybody has said what was drawn meanwhile. `age_s` is the time since the replica knew the
        level.
        """
        self.refill(now_s)
        if holding.terms != self.terms:
            self.terms = holding.terms
            self.level = min(self.level, self.terms.capacity)
        if self._has_given:
            if holding.returned:
                self.level = max(self.level, min(self.terms.capacity, self.level + holding.returned))
        elif (start := start_of(holding, age_s)) is not None:
            before = self.terms.capacity if self._start is None else self._start
            self._start = start if self._start is None else min(start, before)
            self.level += self._start - before
        self.level -= holding.drawn

    def grant(self, holding: Holding, parts: int, now_s: float) -> Grant:
        """Gives what is needed, or nothing, and in advance as much as is fair. Of the replicas that spend of this, one
        gets no more in advance than its part of what is there.
        """
        self._has_given = True
        self.level = min(self.refill(now_s), self.terms.capacity)
        amount = holding.needed
        if amount > 0:
            kept = self._set_aside(holding.whole, now_s)
            if (kept and self.level - kept < amount) or self.level < min(amount, self.terms.capacity):
                return Grant(0.0, self.level, self._refuse(amount, holding.whole, now_s))
            self.level -= amount
            if holding.whole >= self._largest:
                self._largest = self._until_s = 0.0
        if holding.wanted > 0:
            free = max(0.0, self.level - self._set_aside(0.0, now_s))
            ahead = min(holding.wanted, max(0.0, self.level) / max(1, parts), free)
            self.level -= ahead
            amount += ahead
        return Grant(amount, self.level)

    def is_idle(self, now_s: float) -> bool:
        """Returns True if nobody misses it: nothing was asked of it for long, and nothing is owed."""
        return now_s - self._at_s > _IDLE_S and self.level + self.terms.rate_per_s * (now_s - self._at_s) >= 0

    def _set_aside(self, whole: float, now_s: float) -> float:
        """Returns how much a request must leave in the bucket, by what it reserves."""
        if now_s >= self._until_s or whole >= self._largest:
            return 0.0
        flowed = self.terms.rate_per_s * (now_s - self._refused_s)
        return min(self._largest, self.terms.capacity, _SET_ASIDE * flowed)

    def _refuse(self, amount: float, whole: float, now_s: float) -> float:
        """Returns the seconds until a request that is refused will pass; notes it if it is the largest one."""
        rate_per_s, capacity = self.terms
        wait_s = max(0.0, min(amount, capacity) - self.level) / rate_per_s
        is_over = now_s >= self._until_s
        if not is_over and whole < self._largest:
            wait_s = (wait_s + self._set_aside(whole, now_s) / rate_per_s) / (1 - _SET_ASIDE)
            return min(wait_s, self._until_s - now_s + whole / rate_per_s)
        if is_over:
            self._refused_s = now_s
        elif whole == self._largest:  # it has come again, so that others do take what flows in
            wait_s = max(wait_s, self._refused_s + min(whole, capacity) / (_SET_ASIDE * rate_per_s) - now_s)
        self._largest, self._until_s = whole, now_s + wait_s + _GRACE_S
        return wait_s


def start_of(holding: Holding, age_s: float | None) -> float | None:
    """Returns the level with which a bucket begins that a replica knew before; None if it did not."""
    if holding.level is None or age_s is None:
        return None
    return min(holding.level, 0.0) + holding.terms.rate_per_s * age_s


class Seats:
    """The seats of one concurrency, which replicas hold and give back."""

    def __init__(self, terms: LimitTerms, now_s: float) -> None:
        self._terms = terms
        self._at_s = now_s
        self._out: dict[str, tuple[float, float]] = {}

    def book(self, replica: str, holding: Holding, now_s: float) -> None:
        """Takes over how many seats a replica has. None are on their way to it: it has its last answer."""
        self._terms, self._at_s = holding.terms, now_s
        self._out[replica] = (holding.held, now_s)

    def grant(self, replica: str, holding: Holding, now_s: float) -> Grant:
        """Gives what is needed, or nothing, and beyond that as much of what is wanted as there is."""
        self._out = {name: entry for name, entry in self._out.items() if now_s - entry[1] <= FORGET_S}
        free = self._terms.capacity - sum(seats for seats, _ in self._out.values())
        if free < holding.needed:
            return Grant(0.0, free, _SEAT_WAIT_S)
        amount = max(0.0, min(holding.needed + holding.wanted, free))
        self._out[replica] = (holding.held + amount, now_s)
        return Grant(amount, free - amount)

    def is_idle(self, now_s: float) -> bool:
        """Returns True if nobody asks for any."""
        return now_s - self._at_s > _IDLE_S


class OwnBuckets:
    """The buckets and seats of one cluster."""

    clusters = 1

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[LimitId, Bucket] = {}
        self._seats: dict[LimitId, Seats] = {}
        self._swept_s = 0.0

    def book(self, report: Report[Statement, Grants]) -> None:
        """Takes over what a report says, whether it is answered or not."""
        now_s = self._clock()
        if now_s - self._swept_s > _SWEEP_S:
            self._swept_s = now_s
            self._buckets = {id: each for id, each in self._buckets.items() if not each.is_idle(now_s)}
            self._seats = {id: each for id, each in self._seats.items() if not each.is_idle(now_s)}
        for id, holding in report.content.holdings.items():
            if id.kind == "concurrency":
                if id not in self._seats:
                    self._seats[id] = Seats(holding.terms, now_s)
                self._seats[id].book(report.replica, holding, now_s)
            else:
                if id not in self._buckets:
                    self._buckets[id] = Bucket(holding.terms, now_s)
                self._buckets[id].book(holding, report.age_s, now_s)

    async def exchange(self, report: Report[Statement, Grants], parts: Mapping[LimitId, int]) -> dict[LimitId, Grant]:
        """Gives what a report needs and wants."""
        now_s = self._clock()
        grants: dict[LimitId, Grant] = {}
        for id, holding in report.content.holdings.items():
            if id.kind == "concurrency":
                grants[id] = self._seats[id].grant(report.replica, holding, now_s)
            else:
                grants[id] = self._buckets[id].grant(holding, parts.get(id, 1), now_s)
        return grants

    async def spending(self, own: Mapping[str, float], month: str) -> Mapping[str, float]:
        """Returns what was spent in a month: there is no other cluster."""
        return own
