"""What one gateway replica holds of the ledger's limits, and how requests spend it without asking. No I/O."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from serve.limits.messages import Grant, Holding, Meter, Terms

_AHEAD_S = 1.5  # of its demand that a replica wants to hold: until the next answer of the ledger, and some more
_UNUSED_S = 2.0  # after which what is held goes back
_IDLE_S = 120.0  # after which a slice that nobody uses is forgotten
_ALONE_WAIT_S = 30.0  # the longest that a lone replica tells a client to wait: the ledger may be back at any time
_SEAT_WAIT_S = 1.0
_ASK_AGAIN_S = 0.05  # after the ledger has said that no seat is free
_LEAST = 1e-6
_SMOOTHING = 0.5  # weight of the last second in the demand


def _magnitude(needed: float) -> int:
    """Returns a number that amounts share which differ by a quarter at most.

    What was told to a small request is no answer for a large one: the ledger has to hear of that itself.
    """
    return int(math.log(max(needed, _LEAST)) * 4)


class _Slice:
    """A slice, of whatever kind.

    Args:
        meter: What it is of.
        terms: The limit.
        replicas: That there are, for the time before the ledger has answered.
        now_s: Monotonic.

    Attributes:
        held: What may be spent.
        level: The bucket's, in the ledger's last answer; None if there was none.
        alone: The ledger does not answer.
        used_s: When something was last spent.
        needs: Amounts that requests wait for, with what each reserves, for the next report.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        self.meter = meter
        self.kind = meter.kind
        self.terms = terms
        self.held = 0.0
        self.level: float | None = None
        self.alone = False
        self.used_s = now_s
        self.needs: list[tuple[float, float]] = []
        self._replicas = replicas
        self._asked = 0.0  # by the report that is under way

    def ask(self, amount: float) -> None:
        """Notes that a request waits for an amount."""
        self.needs.append((amount - self.held, amount))

    def _take_needs(self) -> tuple[float, float, float]:
        """Returns the first request's need, what it reserves, and the needs of the others together."""
        if not self.needs:
            self._asked = 0.0
            return 0.0, 0.0, 0.0
        (needed, whole), *others = self.needs
        self.needs = []
        self._asked = needed
        return needed, whole, sum(amount for amount, _ in others)


class RateSlice(_Slice):
    """A replica's slice of a rate. What is held may be below zero after requests that cost more than was reserved.

    Attributes:
        shared: What the bucket has left; with `held`, what the whole limit has left, as far as this replica knows.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        super().__init__(meter, terms, replicas, now_s)
        self.shared = 0.0
        self._share: float | None = None
        self._drawn = 0.0
        self._drawn_s = now_s
        self._spent = 0.0
        self._open = 0  # reservations of tokens; requests that are counted are not settled
        self._settles = meter.kind == "tokens"
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
        self.used_s = now_s
        self._open += self._settles
        return True

    def undo(self, amount: float) -> None:
        """Takes back a spending that led to nothing."""
        self.held += amount
        self._spent -= amount
        self._open -= self._settles

    def settle(self, reserved: float, actual: float) -> None:
        """Returns what was reserved and not used, or owes what was used beyond."""
        self._open -= 1
        difference = reserved - actual
        spent = self._spent - difference
        self._spent = spent if spent > 0 else 0.0
        self.held += difference

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until an amount could be there; 0 if nobody has said that it is not."""
        if self.alone:
            missing = min(amount, self.burst) - self.held
            return min(missing / self.share, _ALONE_WAIT_S) if self.share else _ALONE_WAIT_S
        missing = amount - self.held
        needed, until_s = self._refused.get(_magnitude(missing), (math.inf, 0.0))
        return max(0.0, until_s - now_s) if missing >= needed else 0.0

    def holding(self, now_s: float, *, whole: bool, last: bool = False) -> Holding:
        """Returns what the ledger should know.

        Args:
            now_s: Monotonic.
            whole: This is the report of each second, with which goes back what is not needed any more.
            last: Nothing will be needed any more.
        """
        needed, reserved, others = self._take_needs()
        if not whole:
            # At least as much in advance as was spent since the last report: of a demand that has just begun, every
            # request would have to ask otherwise.
            ahead = max(self._demand_per_s * _AHEAD_S, self._spent)
            terms = self.terms, self.held, self.share, self._demand_per_s, self.level
            return Holding(*terms, needed=needed, whole=reserved * self._settles, wanted=ahead + others)
        if self.held < 0 and not self.alone:  # a debt is the scope's: it holds for all replicas, and survives this one
            self._drawn -= self.held
            self.held = 0.0
        elapsed_s = max(now_s - self._reported_s, 1e-3)
        self._reported_s = now_s
        self._demand_per_s += _SMOOTHING * (self._spent / elapsed_s - self._demand_per_s)
        self._spent = 0.0
        unused = last or now_s - self.used_s > _UNUSED_S
        if unused:
            self._demand_per_s = 0.0
        target = self._demand_per_s * _AHEAD_S
        returned = max(0.0, self.held - 2 * target) if (unused or target) and not self.alone else 0.0
        self.held -= returned
        drawn, self._drawn = self._drawn, 0.0
        wanted = 0.0 if self.alone else max(0.0, target - self.held)
        terms = self.terms, self.held, self.share, self._demand_per_s, self.level
        return Holding(*terms, returned, drawn, needed, reserved * self._settles, wanted + others)

    def adopt(self, grant: Grant, now_s: float) -> None:
        """Takes what the ledger gives."""
        self.held += grant.amount
        self.level = grant.level
        self.shared = max(0.0, grant.level)
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


class SeatSlice(_Slice):
    """A replica's seats of a concurrency.

    Attributes:
        held: Free seats.
        in_use: Seats of requests under way.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        super().__init__(meter, terms, replicas, now_s)
        self.in_use = 0.0
        self._most = 0.0  # in use since the last report, and between that and the one before
        self._most_before = 0.0
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
        self._most = max(self._most, self.in_use)
        self.used_s = now_s
        return True

    def undo(self, amount: float) -> None:
        """Takes back what led to nothing."""
        self.settle(amount, 0.0)

    def settle(self, reserved: float, actual: float) -> None:
        """Frees the seat, whatever the request cost."""
        self.held += reserved
        self.in_use -= reserved
        self._refused_s = 0.0

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns a second if there is no seat: nobody knows when a request ends."""
        return _SEAT_WAIT_S if self.alone or now_s < self._refused_s else 0.0

    def holding(self, now_s: float, *, whole: bool, last: bool = False) -> Holding:
        """Returns what the ledger should know; see `RateSlice.holding`.

        Seats that nobody has used for two reports go back where others may need them. Of plenty, as many again are
        wanted in advance, for the time when the ledger does not answer.
        """
        needed, _, others = self._take_needs()
        if whole:
            if not (self.alone or self._plenty):
                self.held = min(self.held, max(self._most, self._most_before, self.in_use) - self.in_use)
            self._most, self._most_before = self.in_use, self._most
            if last:
                self.held = 0.0
        ahead = self.in_use + needed if needed and self._plenty else 0.0
        return Holding(self.terms, self.held + self.in_use, level=self.level, needed=needed, wanted=others + ahead)

    def adopt(self, grant: Grant, now_s: float) -> None:
        """Takes the seats that the ledger gives."""
        self.held += grant.amount
        self.level = grant.level
        if self._asked and grant.wait_s:
            self._refused_s = now_s + _ASK_AGAIN_S

    def draw(self, now_s: float) -> None:
        """Begins the time alone: seats that are held stay; who never met the ledger has half an equal part."""
        if not self.alone and self.level is None and not self.held and not self.in_use:
            self.held = float(max(1, int(self.terms.capacity / (2 * self._replicas))))
        self.alone = True


Slice = RateSlice | SeatSlice


class Holdings:
    """The slices of one replica.

    Args:
        replicas: How many there are.

    Attributes:
        forgotten: Slices that were dropped so far; whoever keeps slices must get new ones when it changes.
    """

    def __init__(self, replicas: int) -> None:
        self.forgotten = 0
        self._replicas = replicas
        self._slices: dict[Meter, Slice] = {}

    def slice(self, meter: Meter, terms: Terms, now_s: float, *, alone: bool) -> Slice:
        """Returns the slice of a meter, under the terms as they are now."""
        found = self._slices.get(meter)
        if found is None:
            kind = SeatSlice if meter.kind == "concurrency" else RateSlice
            found = self._slices[meter] = kind(meter, terms, self._replicas, now_s)
            if alone:
                found.draw(now_s)
        found.terms = terms
        return found

    def in_use(self, meter: Meter) -> float:
        """Returns the seats of requests under way; 0 for a meter that has none."""
        held = self._slices.get(meter)
        return held.in_use if isinstance(held, SeatSlice) else 0.0

    @property
    def has_needs(self) -> bool:
        """True if requests wait for something that no report has asked for yet."""
        return any(held.needs for held in self._slices.values())

    def collect(self, now_s: float, *, whole: bool, last: bool = False) -> dict[Meter, Holding]:
        """Returns what the ledger should know: of all slices, or of those that requests wait for."""
        if not whole:
            return {meter: held.holding(now_s, whole=False) for meter, held in self._slices.items() if held.needs}
        holdings: dict[Meter, Holding] = {}
        for meter, held in list(self._slices.items()):
            if held.alone:
                held.draw(now_s)
            holdings[meter] = held.holding(now_s, whole=True, last=last)
            if now_s - held.used_s > _IDLE_S and not held.alone and not held.busy:
                del self._slices[meter]
                self.forgotten += 1
        return holdings

    def adopt(self, grants: Mapping[Meter, Grant], now_s: float) -> None:
        """Takes what the ledger gives, and ends the time alone."""
        for meter, grant in grants.items():
            if (held := self._slices.get(meter)) is not None:
                held.adopt(grant, now_s)
        for held in self._slices.values():
            held.alone = False

    def lost(self, now_s: float) -> None:
        """Begins the time alone, or goes on with it: every slice refills itself at its share."""
        for held in self._slices.values():
            held.draw(now_s)


class Line(NamedTuple):
    """One limit that a request meets.

    Attributes:
        held: Where it is spent.
        shadow: It is counted and refuses nothing.
    """

    held: Slice
    shadow: bool


class Reservation(Struct, eq=False, gc=False):
    """A request's reservation; it is settled or kept once, whoever asks how often.

    Attributes:
        lines: What it was taken from.
        cost: Weighted tokens that are reserved.
        state: `open`; then `settled` by real usage, or `kept` as it was, where nobody knows the usage.
    """

    lines: Sequence[Line]
    cost: float
    state: Literal["open", "settled", "kept"] = "open"

    def settle(self, cost: float | None) -> float | None:
        """Corrects what was reserved.

        Args:
            cost: Weighted tokens that were used; None keeps what was reserved.

        Returns:
            What is charged; None if that was done before.
        """
        if self.state != "open":
            return None
        self.state = "kept" if cost is None else "settled"
        actual = self.cost if cost is None else cost
        for held, _ in self.lines:
            if held.kind == "tokens":
                held.settle(self.cost, actual)
            elif held.kind == "concurrency":
                held.settle(1.0, 0.0)
        return actual


def amount_of(held: Slice, cost: float) -> float:
    """Returns what a request of a cost takes from a slice."""
    return cost if held.kind == "tokens" else 1.0


def reserve(lines: Sequence[Line], cost: float, now_s: float) -> Reservation | None:
    """Reserves from every slice, or from none.

    Args:
        lines: The limits that the request meets.
        cost: Weighted tokens.
        now_s: Monotonic.

    Returns:
        None if a slice is too small.
    """
    for place, (held, _) in enumerate(lines):
        if not held.take(cost if held.kind == "tokens" else 1.0, now_s):
            for other, _ in lines[:place]:
                other.undo(amount_of(other, cost))
            return None
    return Reservation(lines, cost)


def draw(lines: Iterable[Line], now_s: float) -> None:
    """Lets the slices of a replica that is alone refill themselves."""
    for held, _ in lines:
        held.draw(now_s)
