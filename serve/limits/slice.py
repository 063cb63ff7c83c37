"""The share of the ledger's limits that one gateway replica holds, and spends without asking. No I/O."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from serve.limits.ledger_messages import Grant, Holding, LimitId, LimitTerms

_AHEAD_S = 1.5  # of its demand that a replica wants to hold: until the next answer of the ledger, and some more
_UNUSED_S = 2.0  # after which what is held goes back
_IDLE_S = 120.0  # after which a slice that nobody uses is forgotten
_ALONE_WAIT_S = 30.0  # the longest that a lone replica tells a client to wait: the ledger may be back at any time
_SEAT_WAIT_S = 1.0
_ASK_AGAIN_S = 0.05  # after the ledger has said that no seat is free
_LEAST = 1e-6
_LEAST_S = 1e-3
_HALF_LIFE_S = 1.0  # of a spending in the demand: with `_AHEAD_S`, whoever has just begun asks for as much again
_PEAK_S = 0.9  # for which the most seats in use are remembered, and as long again: a little less than between reports


class _Slice:
    """A slice, of whatever kind. The number of replicas counts until the ledger has answered.

    Attributes:
        level: The bucket's, in the ledger's last answer; None if there was none.
        used_s: When a request last spent of it, or wanted to.
        needs: What requests wait for, for the next report.
    """

    def __init__(self, id: LimitId, terms: LimitTerms, replicas: int, now_s: float) -> None:
        self.id = id
        self.kind = id.kind
        self.terms = terms
        self.held = 0.0
        self.level: float | None = None
        self.shadow = False
        self.alone = False
        self.used_s = now_s
        self.needs: list[float] = []
        self._replicas = replicas
        self._asked = 0.0  # by the report that is under way

    def amount(self, cost: float) -> float:
        return cost if self.kind == "tokens" else 1.0

    def _take_needs(self) -> tuple[float, float, float]:
        """Returns what the first request lacks, what it reserves, and what the others reserve together."""
        whole, *others = self.needs or [0.0]
        self.needs = []
        self._asked = max(0.0, whole - self.held) if whole else 0.0
        return self._asked, whole, sum(others)


class RateSlice(_Slice):
    """A replica's slice of a rate. What is held may be below zero after requests that cost more than was reserved."""

    def __init__(self, id: LimitId, terms: LimitTerms, replicas: int, now_s: float) -> None:
        super().__init__(id, terms, replicas, now_s)
        self._share: float | None = None
        self._drawn = 0.0
        self._drawn_s = now_s
        self._spent = 0.0
        self._open = 0  # reservations
        self._demand_per_s = 0.0
        self._reported_s = now_s
        self._refused: dict[int, tuple[float, float]] = {}  # what was needed, and until when it will not be there

    @property
    def busy(self) -> bool:
        """True if requests under way hold something of it: what they will give back or owe must find it here."""
        return self._open > 0

    @property
    def share(self) -> float:
        """The refill in each second while the ledger does not answer; half of an equal part if it never has."""
        return self.terms.rate_per_s / (2 * self._replicas) if self._share is None else self._share

    @property
    def left(self) -> float:
        """The rest of the whole limit, as far as this replica knows."""
        level = self.level
        return self.held + level if level is not None and level > 0 else self.held

    @property
    def burst(self) -> float:
        """The most that a lone slice holds."""
        return self.terms.capacity * self.share / self.terms.rate_per_s

    def affords(self, amount: float) -> bool:
        """True if an amount may be spent now; a lone slice that is full may go into debt for a large one."""
        return self.held >= amount or (self.alone and self.held >= min(amount, self.burst) > 0)

    def take(self, amount: float, now_s: float) -> bool:
        """Spends an amount, all of it or nothing."""
        if self.held < amount and not self.affords(amount):
            return False
        self.held -= amount
        self._spent += amount
        self._open += 1
        self.used_s = now_s
        return True

    def settle(self, reserved: float, actual: float) -> None:
        """Returns what was reserved and not used, or owes what was used beyond."""
        difference = reserved - actual
        self._open -= 1
        spent = self._spent - difference
        self._spent = spent if spent > 0 else 0.0  # what comes back of earlier spending is no demand
        self.held += difference

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until an amount could be there; 0 if nobody has said that it is not."""
        if self.alone:
            missing = min(amount, self.burst) - self.held
            return min(missing / self.share, _ALONE_WAIT_S) if self.share else _ALONE_WAIT_S
        missing = amount - self.held
        needed, until_s = self._refused.get(_magnitude(missing), (math.inf, 0.0))
        return max(0.0, until_s - now_s) if missing >= needed else 0.0

    def holding(self, now_s: float, *, last: bool = False) -> Holding:
        """Returns what the ledger should know. With it go back debts, and what is not needed any more. The last time,
        nothing will be needed any more.
        """
        if self.held < 0 and not self.alone:  # a debt is the scope's: it holds for all replicas, and survives this one
            self._drawn -= self.held
            self.held = 0.0
        needed, whole, others = self._take_needs()
        unused = last or now_s - self.used_s > _UNUSED_S
        target = self._demand(now_s, unused=unused) * _AHEAD_S
        returned = 0.0
        if not (self.alone or needed) and (unused or target):
            returned = max(0.0, self.held - 2 * target)
        self.held -= returned
        drawn, self._drawn = self._drawn, 0.0
        wanted = 0.0 if self.alone else max(0.0, target - self.held)
        whole = whole if self.kind == "tokens" else 0.0  # counted requests are all of one size
        terms = self.terms, self.held, self.share, self._demand_per_s, self.level
        return Holding(*terms, returned, drawn, needed, whole, wanted + others)

    def _demand(self, now_s: float, *, unused: bool) -> float:
        """Returns what is spent in a second: the mean of the last seconds, of which the latest weigh most."""
        elapsed_s = max(now_s - self._reported_s, _LEAST_S)
        kept = 0.5 ** (elapsed_s / _HALF_LIFE_S)
        demand = kept * self._demand_per_s + (1 - kept) * self._spent / elapsed_s
        self._reported_s, self._spent = now_s, 0.0
        self._demand_per_s = 0.0 if unused else demand
        return self._demand_per_s

    def adopt(self, grant: Grant, now_s: float) -> None:
        self.held += grant.amount
        self.level = grant.level
        self._share = grant.share
        if self._asked and grant.wait_s:
            self._refused[_magnitude(self._asked)] = (self._asked, now_s + grant.wait_s)
        elif grant.amount:
            self._refused.clear()

    def draw(self, now_s: float) -> None:
        """Refills the slice of a replica that is alone."""
        if not self.alone:
            self.alone = True
            self._drawn_s = now_s
            if self._share is None and not self._drawn:  # the ledger has never answered
                self._add(self.burst)
        elapsed_s, self._drawn_s = now_s - self._drawn_s, now_s
        self._add(min(self.share * elapsed_s, self.burst - self.held))

    def _add(self, amount: float) -> None:
        if amount > 0:
            self.held += amount
            self._drawn += amount


def _magnitude(needed: float) -> int:
    """Returns a number that amounts share which differ by a quarter at most.

    The answer to a small request is none for a large one: the ledger has to see that itself.
    """
    return int(math.log(max(needed, _LEAST)) * 4)


class SeatSlice(_Slice):
    """A replica's seats of a concurrency.

    Attributes:
        held: Free seats.
    """

    def __init__(self, id: LimitId, terms: LimitTerms, replicas: int, now_s: float) -> None:
        super().__init__(id, terms, replicas, now_s)
        self.in_use = 0.0
        self._peak = self._peak_before = 0.0  # the most in use, of late and before that
        self._peak_s = now_s
        self._refused_s = 0.0  # until when the ledger need not be asked again

    @property
    def busy(self) -> bool:
        """True if requests under way hold something of it."""
        return self.in_use > 0

    @property
    def _plenty(self) -> bool:
        """True if half of all seats are free at the ledger."""
        return self.level is not None and self.level >= self.terms.capacity / 2

    def affords(self, amount: float) -> bool:
        """True if so many seats are free."""
        return self.held >= amount

    def take(self, amount: float, now_s: float) -> bool:
        """Takes seats, all of them or none."""
        if self.held < amount:
            return False
        self.held -= amount
        self.in_use += amount
        self._peak = max(self._peak, self.in_use)
        self.used_s = now_s
        return True

    def free(self, seats: float = 1.0) -> None:
        self.held += seats
        self.in_use -= seats
        self._refused_s = 0.0

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns a second if there is no seat: nobody knows when a request ends."""
        return _SEAT_WAIT_S if self.alone or now_s < self._refused_s else 0.0

    def holding(self, now_s: float, *, last: bool = False) -> Holding:
        """Returns what the ledger should know; see `RateSlice.holding`.

        Seats that nobody has used of late go back where others may need them. Of plenty, as many again as were in use
        are wanted in advance, for the time when the ledger does not answer; it stays plenty if all replicas do so.
        """
        needed, _, others = self._take_needs()
        coming = self.in_use + needed + others
        most = max(self._peak, self._peak_before, coming)
        if now_s - self._peak_s >= _PEAK_S:
            if not (self.alone or self._plenty):
                self.held = min(self.held, max(self._peak, self._peak_before) - self.in_use)
            self._peak_s, self._peak_before, self._peak = now_s, self._peak, self.in_use
        if last:
            self.held = 0.0
        ahead = 0.0
        if self.level is not None and not last:
            beyond_plenty = (self.level - self.terms.capacity / 2) // self._replicas
            ahead = max(0.0, min(2 * most - coming - self.held, beyond_plenty))
        return Holding(self.terms, self.held + self.in_use, level=self.level, needed=needed, wanted=others + ahead)

    def adopt(self, grant: Grant, now_s: float) -> None:
        self.held += grant.amount
        self.level = grant.level
        if self._asked and grant.wait_s:
            self._refused_s = now_s + _ASK_AGAIN_S

    def draw(self, now_s: float) -> None:
        """Begins the time alone: seats that are held stay; who never reached the ledger has half an equal part."""
        if not self.alone and self.level is None and not self.held and not self.in_use:
            self.held = float(max(1, int(self.terms.capacity / (2 * self._replicas))))
        self.alone = True


Slice = RateSlice | SeatSlice


class Holdings:
    """The slices of one replica.

    Attributes:
        forgotten: Slices that were dropped so far; whoever keeps slices must get new ones when it changes.
    """

    def __init__(self, replicas: int) -> None:
        self.forgotten = 0
        self._replicas = replicas
        self._slices: dict[LimitId, Slice] = {}

    def slice(self, id: LimitId, terms: LimitTerms, now_s: float, *, alone: bool, shadow: bool = False) -> Slice:
        """Returns the slice of a limit, under the terms as they are now; see `_Slice`."""
        found = self._slices.get(id)
        if found is None:
            kind = SeatSlice if id.kind == "concurrency" else RateSlice
            found = self._slices[id] = kind(id, terms, self._replicas, now_s)
            if alone:
                found.draw(now_s)
        found.terms, found.shadow = terms, shadow
        return found

    def in_use(self, scope: str) -> float:
        """Returns the requests under way of a scope; 0 for one whose concurrency is not limited."""
        held = self._slices.get(LimitId(scope, "concurrency"))
        return held.in_use if isinstance(held, SeatSlice) else 0.0

    @property
    def has_needs(self) -> bool:
        """True if requests wait for something that no report has asked for yet."""
        return any(held.needs for held in self._slices.values())

    def needed(self, now_s: float) -> dict[LimitId, Holding]:
        """Returns what the ledger should know of the slices that requests wait for."""
        return {id: held.holding(now_s) for id, held in self._slices.items() if held.needs}

    def all(self, now_s: float, *, last: bool = False) -> dict[LimitId, Holding]:
        """Returns what the ledger should know of all slices, and forgets those that nobody uses."""
        holdings: dict[LimitId, Holding] = {}
        for id, held in list(self._slices.items()):
            if held.alone:
                held.draw(now_s)
            holdings[id] = held.holding(now_s, last=last)
            if now_s - held.used_s > _IDLE_S and not held.alone and not held.busy:
                del self._slices[id]
                self.forgotten += 1
        return holdings

    def adopt(self, grants: Mapping[LimitId, Grant], now_s: float) -> None:
        """Takes what the ledger gives, and ends the time alone."""
        for id, grant in grants.items():
            if (held := self._slices.get(id)) is not None:
                held.adopt(grant, now_s)
        for held in self._slices.values():
            held.alone = False

    def lost(self, now_s: float) -> None:
        """Begins the time alone, or goes on with it: every slice refills itself at its share."""
        for held in self._slices.values():
            held.draw(now_s)


class Reservation(Struct, eq=False, gc=False):
    """What is reserved for a request: tokens, one of the requests of a rate, and a seat, as far as each is limited.

    Attributes:
        cost: Weighted tokens.
    """

    slices: Sequence[Slice]
    cost: float
    is_open: bool = True

    def settle(self, cost: float) -> None:
        """Puts the tokens that were used in place of those reserved, and frees the seat, once: it does nothing the
        second time.
        """
        if not self.is_open:
            return
        self.is_open = False
        for held in self.slices:
            if isinstance(held, SeatSlice):
                held.free()
            elif held.kind == "tokens":
                held.settle(self.cost, cost)
            else:
                held.settle(1.0, 1.0)  # it was a request, whatever it cost


def reserve(slices: Sequence[Slice], cost: float, now_s: float) -> Reservation | None:
    """Reserves from every slice, or from none. The cost is in weighted tokens.

    Returns:
        None if a slice is too small.
    """
    for place, held in enumerate(slices):
        if not held.take(cost if held.kind == "tokens" else 1.0, now_s):
            for other in slices[:place]:
                if isinstance(other, SeatSlice):
                    other.free()
                else:
                    other.settle(other.amount(cost), 0.0)
            return None
    return Reservation(slices, cost)
