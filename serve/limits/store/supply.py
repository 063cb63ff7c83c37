"""The ledger's accounts of what the store gives: a bucket that fills with advances, and seats that were claimed."""

from serve.limits.account import RateAccount, SeatAccount
from serve.limits.ledger import Account
from serve.limits.messages import Meter, Terms
from serve.limits.store.advances import Advances

_AGAIN_S = 0.02  # after which the store has answered what nobody waited for
_ALONE_S = 5.0  # the store may be back at any time
_ROUNDING = 1e-9


class PrepaidBucket:
    """A bucket into which only advances of the store flow; while that is away, the cluster's share.

    Args:
        advances: All that the cluster holds.
        meter: What the bucket is of.
        terms: The limit of all clusters together.
        now_s: Monotonic.

    Attributes:
        rate_per_s, capacity: The limit's, of all clusters together.
    """

    def __init__(self, advances: Advances, meter: Meter, terms: Terms, now_s: float) -> None:
        self.rate_per_s, self.capacity = terms
        self._advances = advances
        self._meter = meter
        self._held = advances.rate(meter, terms, now_s)
        self._inherited = 0.0

    @property
    def level(self) -> float:
        """The sum of what is here and what the store has beside; below zero it is a debt."""
        held = self._held.held
        return held if held < 0 else held + max(0.0, self._held.level or 0.0)

    @property
    def share(self) -> float:
        """The cluster's share of the rate, for its replicas to divide."""
        return self._held.share

    def inherit(self, level: float, alone_s: float, now_s: float) -> None:
        """Goes on with an earlier ledger's debt; the deepest one counts. Nothing flows in but from the store."""
        debt = max(0.0, -level - self._inherited)
        self._inherited += debt
        self.owe(debt, now_s)

    def change(self, rate_per_s: float, capacity: float, now_s: float) -> None:
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self._renew(now_s)

    def take(self, amount: float, now_s: float) -> bool:
        """Takes an amount, all of it or nothing; what the store gave just for it may be off by a rounding."""
        self._renew(now_s)
        if not self._held.affords(amount - _ROUNDING * abs(amount)):
            return False
        self._held.spend(amount, now_s)
        return True

    def take_some(self, amount: float, now_s: float) -> float:
        self._renew(now_s)
        taken = max(0.0, min(amount, self._held.held))
        if taken:
            self._held.spend(taken, now_s)
        return taken

    def give(self, amount: float, now_s: float) -> None:
        self._renew(now_s)
        self._held.give(amount)

    def owe(self, amount: float, now_s: float) -> None:
        self._renew(now_s)
        if amount:
            self._held.spend(amount, now_s)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until it is worth asking again; never none, since the store was asked already."""
        return min(max(self._held.wait_s(amount, now_s), _AGAIN_S), _ALONE_S if self._held.alone else float("inf"))

    def _renew(self, now_s: float) -> None:
        self._held = self._advances.rate(self._meter, Terms(self.rate_per_s, self.capacity), now_s)


class ClaimedSeats:
    """Seats that the store gave to this cluster.

    Args:
        advances: All that the cluster holds.
        meter: What the seats are of.
    """

    def __init__(self, advances: Advances, meter: Meter) -> None:
        self._advances = advances
        self._meter = meter

    def free(self, terms: Terms, out: float, now_s: float) -> float:
        return self._advances.seats(self._meter, terms, now_s).use(out, now_s)


def prepaid_account(advances: Advances, meter: Meter, terms: Terms, now_s: float) -> Account:
    """Returns a new account of what the store gives to this cluster."""
    if meter.kind == "concurrency":
        return SeatAccount(terms, ClaimedSeats(advances, meter))
    return RateAccount(PrepaidBucket(advances, meter, terms, now_s), saves=False)
