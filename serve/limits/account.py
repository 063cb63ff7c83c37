"""The ledger's books of one meter: what is there, and what each replica was given."""

from typing import Protocol

from serve.limits.messages import Ask, Grant, Holding, Terms
from serve.limits.saving import Saving

_SMALLEST_WEIGHT = 1e-3  # of a replica without demand, so that every replica has some share


class Supply(Protocol):
    """The source of a rate; see `Bucket`, which has all of it."""

    rate_per_s: float
    capacity: float

    @property
    def level(self) -> float: ...
    @property
    def share(self) -> float: ...
    def inherit(self, level: float, alone_s: float, now_s: float) -> None: ...
    def change(self, rate_per_s: float, capacity: float, now_s: float) -> None: ...
    def take(self, amount: float, now_s: float) -> bool: ...
    def take_some(self, amount: float, now_s: float) -> float: ...
    def give(self, amount: float, now_s: float) -> None: ...
    def owe(self, amount: float, now_s: float) -> None: ...
    def wait_s(self, amount: float, now_s: float) -> float: ...


class RateAccount:
    """The account of a rate: a bucket, from which replicas get slices in advance.

    Args:
        bucket: What there is.
        saves: Set something aside for large requests. Where the bucket is not the whole of the rate, that is no help:
            others take what is kept here.
    """

    def __init__(self, bucket: Supply, *, saves: bool = True) -> None:
        self._bucket = bucket
        self._saving = Saving() if saves else None
        self._demand: dict[str, float] = {}
        self._shares: dict[str, float] = {}  # the most that each may have
        self._told: dict[str, float] = {}  # in the last answer

    @property
    def terms(self) -> Terms:
        return Terms(self._bucket.rate_per_s, self._bucket.capacity)

    @property
    def level(self) -> float:
        """The bucket's level; below zero it is a debt."""
        return self._bucket.level

    @property
    def shares(self) -> float:
        """The sum of all shares that replicas may have been told."""
        return sum(self._shares.values())

    @property
    def known(self) -> int:
        """Replicas that have told of this meter."""
        return len(self._demand)

    def begin(self, holding: Holding, alone_s: float | None, now_s: float) -> None:
        """Learns from a replica how things stood before this ledger began."""
        if holding.level is not None and alone_s is not None:
            self._bucket.inherit(holding.level, alone_s, now_s)

    def report(
        self, replica: str, holding: Holding, now_s: float, *, confirmed: bool, grants: bool, strangers: int
    ) -> Grant:
        """Books a report.

        Args:
            replica: Whose.
            holding: What it says.
            now_s: Monotonic.
            confirmed: It has applied every answer that it was sent.
            grants: Something may be given.
            strangers: Replicas that have not told of this meter yet. Without a ledger they would begin with half of
                an equal share.
        """
        bucket = self._bucket
        if holding.terms != self.terms:
            bucket.change(*holding.terms, now_s)
        bucket.owe(holding.drawn, now_s)
        if grants:
            bucket.give(holding.returned, now_s)
        self._demand[replica] = holding.demand_per_s
        amount = self._in_advance(holding.wanted, now_s) if grants else 0.0
        return Grant(amount, bucket.level, self._share(replica, strangers, confirmed))

    def lease(self, replica: str, ask: Ask, now_s: float) -> Grant:
        """Gives what is needed, or nothing, and in advance as much as is fair."""
        bucket = self._bucket
        if ask.terms != self.terms:
            bucket.change(*ask.terms, now_s)
        bucket.give(0.0, now_s)
        kept = self._kept(ask.whole, now_s)
        if (kept and bucket.level - kept < ask.needed) or not bucket.take(ask.needed, now_s):
            wait_s = bucket.wait_s(ask.needed, now_s)
            if self._saving is not None:
                wait_s = self._saving.refused(ask.whole, wait_s, *self.terms, now_s)
            return Grant(0.0, bucket.level, self._told.get(replica, 0.0), wait_s)
        if self._saving is not None:
            self._saving.passed(ask.whole)
        return Grant(ask.needed + self._in_advance(ask.wanted, now_s), bucket.level, self._told.get(replica, 0.0))

    def owes(self, now_s: float) -> bool:
        """Returns True if a debt is not paid yet."""
        self._bucket.give(0.0, now_s)  # what has flowed in meanwhile
        return self._bucket.level < 0

    def forget(self, replica: str) -> None:
        """Forgets a replica that has ended; what it had not spent is lost."""
        self._demand.pop(replica, None)
        self._shares.pop(replica, None)
        self._told.pop(replica, None)

    def _kept(self, whole: float, now_s: float) -> float:
        return 0.0 if self._saving is None else self._saving.kept(whole, *self.terms, now_s)

    def _in_advance(self, wanted: float, now_s: float) -> float:
        """Takes what a replica wants for requests that may come, as far as it is fair."""
        free = max(0.0, self._bucket.level - self._kept(0.0, now_s))
        return self._bucket.take_some(min(wanted, self._fair_part(), free), now_s)

    def _fair_part(self) -> float:
        """Returns the most that one replica gets in advance, so that something is left for the others."""
        busy = sum(demand > 0 for demand in self._demand.values())
        return max(0.0, self._bucket.level) / max(1, busy)

    def _share(self, replica: str, strangers: int, confirmed: bool) -> float:
        """Returns a replica's share of the rate.

        It grows only by what others are known to have given up, so that the sum is never above the rate.
        """
        strangers = max(0, strangers)
        weights = {name: max(demand, _SMALLEST_WEIGHT) for name, demand in self._demand.items()}
        rate = self._bucket.share
        others = sum(share for name, share in self._shares.items() if name != replica)
        kept = rate * strangers / (2 * (strangers + len(weights)))
        share = max(0.0, min((rate - kept) * weights[replica] / sum(weights.values()), rate - kept - others))
        # This answer may never arrive, and so may others before it: until the replica confirms a lower share, it may
        # still have the one before, and nobody else gets what is free.
        had = self._told.get(replica, 0.0) if confirmed else self._shares.get(replica, 0.0)
        self._shares[replica] = max(share, had)
        self._told[replica] = share
        return share


class Seats(Protocol):
    """The source of a concurrency's seats."""

    def free(self, terms: Terms, out: float, now_s: float) -> float:
        """Returns how many there are beside those that replicas have."""
        ...


class AllSeats:
    """All that the limit has."""

    def free(self, terms: Terms, out: float, now_s: float) -> float:
        return terms.capacity - out


class SeatAccount:
    """The account of a concurrency: seats that replicas hold and give back.

    Args:
        terms: The limit.
        seats: What there is.
    """

    def __init__(self, terms: Terms, seats: Seats) -> None:
        self.terms = terms
        self._seats = seats
        self._out: dict[str, float] = {}

    @property
    def out(self) -> float:
        """Seats that replicas may hold."""
        return sum(self._out.values())

    @property
    def known(self) -> int:
        """Replicas that have told of this meter."""
        return len(self._out)

    def begin(self, holding: Holding, alone_s: float | None, now_s: float) -> None:
        """Does nothing: `report` learns what a replica holds, and seats know no time."""

    def report(
        self, replica: str, holding: Holding, now_s: float, *, confirmed: bool, grants: bool, strangers: int
    ) -> Grant:
        """Books a report, as `RateAccount.report`. Seats of an answer that never arrived come back by it."""
        self.terms = holding.terms
        if confirmed or replica not in self._out:
            self._out[replica] = holding.held
        # Without that, the number is what it was or lower: neither is told for certain.
        return self._give(replica, holding.wanted if grants else 0.0, now_s)

    def lease(self, replica: str, ask: Ask, now_s: float) -> Grant:
        """Gives what is needed, or nothing, and beyond that as much of what is wanted as there is."""
        self.terms = ask.terms
        free = self._seats.free(self.terms, self.out, now_s)
        if free < ask.needed:
            return Grant(0.0, free, wait_s=1.0)  # nobody knows when a request ends
        return self._give(replica, ask.needed + ask.wanted, now_s)

    def owes(self, now_s: float) -> bool:
        """Returns False: seats are given or not."""
        return False

    def forget(self, replica: str) -> None:
        """Takes the seats of a replica that has ended."""
        self._out.pop(replica, None)

    def _give(self, replica: str, wanted: float, now_s: float) -> Grant:
        amount = max(0.0, min(wanted, self._seats.free(self.terms, self.out, now_s)))
        self._out[replica] = self._out.get(replica, 0.0) + amount
        return Grant(amount, self._seats.free(self.terms, self.out, now_s))
