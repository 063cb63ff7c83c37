"""The ledger's books of one meter: what is there, and what each replica was given."""

from serve.limits.bucket import Bucket
from serve.limits.messages import Ask, Grant, Holding, Terms

_SMALLEST_WEIGHT = 1e-3  # of a replica without demand, so that every replica has some share


class RateAccount:
    """The account of a rate: a bucket, from which replicas get slices in advance.

    Args:
        terms: The limit.
        level: Of the bucket, at the start.
        now_s: Monotonic.
    """

    def __init__(self, terms: Terms, level: float, now_s: float) -> None:
        self._bucket = Bucket(*terms, level, now_s)
        self._demand: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    @property
    def terms(self) -> Terms:
        return Terms(self._bucket.rate_per_s, self._bucket.capacity)

    @property
    def shares(self) -> float:
        """The sum of all shares that replicas may have been told."""
        return sum(self._shares.values())

    @property
    def known(self) -> int:
        """Replicas that have told of this meter."""
        return len(self._demand)

    def begin(self, holding: Holding, alone_s: float | None, now_s: float) -> None:
        """Learns from a replica how things stood before this ledger began.

        The old bucket's debt goes on; what lay in it is forgotten, since nobody knows how much of it was given away.
        """
        if holding.level is None or alone_s is None:
            return
        level = min(holding.level, 0.0) + self._bucket.rate_per_s * alone_s
        self._bucket.level = min(self._bucket.refill(now_s), level)

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
        bucket.give(holding.returned, now_s)
        self._demand[replica] = holding.demand_per_s
        amount = bucket.take_some(min(holding.wanted, self._fair_part()), now_s) if grants else 0.0
        return Grant(amount, bucket.level, self._share(replica, strangers, confirmed))

    def lease(self, replica: str, ask: Ask, now_s: float) -> Grant:
        """Gives what is needed, or nothing, and in advance as much as is fair."""
        bucket = self._bucket
        if ask.terms != self.terms:
            bucket.change(*ask.terms, now_s)
        if not bucket.take(ask.needed, now_s):
            return Grant(0.0, bucket.level, self._shares.get(replica, 0.0), bucket.wait_s(ask.needed, now_s))
        ahead = bucket.take_some(min(ask.wanted, self._fair_part()), now_s)
        return Grant(ask.needed + ahead, bucket.level, self._shares.get(replica, 0.0))

    def forget(self, replica: str) -> None:
        """Forgets a replica that has ended; what it had not spent is lost."""
        self._demand.pop(replica, None)
        self._shares.pop(replica, None)

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
        rate = self._bucket.rate_per_s
        others = sum(share for name, share in self._shares.items() if name != replica)
        kept = rate * strangers / (2 * (strangers + len(weights)))
        share = max(0.0, min((rate - kept) * weights[replica] / sum(weights.values()), rate - kept - others))
        # An answer that may not have arrived changes nothing for the others: the replica may still have its old share.
        self._shares[replica] = share if confirmed else max(share, self._shares.get(replica, 0.0))
        return share


class SeatAccount:
    """The account of a concurrency: seats that replicas hold and give back.

    Args:
        terms: The limit.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
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
        return self._give(replica, holding.wanted if grants else 0.0, whole=False)

    def lease(self, replica: str, ask: Ask, now_s: float) -> Grant:
        """Gives what is needed, or nothing."""
        self.terms = ask.terms
        return self._give(replica, ask.needed, whole=True)

    def forget(self, replica: str) -> None:
        """Takes the seats of a replica that has ended."""
        self._out.pop(replica, None)

    def _give(self, replica: str, wanted: float, *, whole: bool) -> Grant:
        free = self.terms.capacity - self.out
        amount = max(0.0, min(wanted, free))
        if whole and amount < wanted:
            return Grant(0.0, free, wait_s=1.0)  # nobody knows when a request ends
        self._out[replica] = self._out.get(replica, 0.0) + amount
        return Grant(amount, free - amount)
