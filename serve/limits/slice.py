"""One gateway replica's slice of one meter: given in advance by the ledger, spent without asking."""

import math

from serve.limits.messages import Ask, Grant, Holding, Meter, Terms

_AHEAD_S = 1.5  # of its demand that a replica wants to hold: until the next answer of the ledger, and some more
_UNUSED_S = 2.0  # after which what is held goes back
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


class RateSlice:
    """A replica's slice of a rate.

    Args:
        meter: What it is of.
        terms: The limit.
        replicas: That there are, for the time before the ledger has answered.
        now_s: Monotonic.

    Attributes:
        kind: Of the meter.
        held: What may be spent; below zero, until the next report, after requests that cost more than was reserved.
        level: Of the shared bucket, as told last; None if it never was.
        shared: What the bucket had left then; with `held`, what the whole scope has left, as far as this replica knows.
        alone: The ledger does not answer, so that the slice refills itself at `share`.
        used_s: When something was last spent.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        self.meter = meter
        self.kind = meter.kind
        self.terms = terms
        self.held = 0.0
        self.level: float | None = None
        self.shared = 0.0
        self.used_s = now_s
        self.alone = False
        self._replicas = replicas
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
        """The refill in each second while the ledger does not answer."""
        return self.terms.rate_per_s / (2 * self._replicas) if self._share is None else self._share

    @property
    def burst(self) -> float:
        """The most that a lone slice holds."""
        return self.terms.capacity * self.share / self.terms.rate_per_s

    def affords(self, amount: float) -> bool:
        """True if an amount may be spent now."""
        return self.held >= amount or (self.alone and self.held >= min(amount, self.burst))

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

    def ask(self, amount: float) -> Ask:
        """Returns what the ledger must give before an amount may be spent.

        In advance, it wants at least as much as was spent since the last report: of a demand that has just begun, every
        request would have to ask otherwise.
        """
        whole = amount if self._settles else 0.0  # requests are all of one size
        return Ask(self.terms, amount - self.held, max(self._demand_per_s * _AHEAD_S, self._spent), whole)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until an amount could be there; 0 if nobody has said that it is not."""
        if self.alone:
            missing = min(amount, self.burst) - self.held
            return min(missing / self.share, _ALONE_WAIT_S) if self.share else _ALONE_WAIT_S
        missing = amount - self.held
        needed, until_s = self._refused.get(_magnitude(missing), (math.inf, 0.0))
        return max(0.0, until_s - now_s) if missing >= needed else 0.0

    def apply(self, grant: Grant, now_s: float, needed: float = 0.0) -> None:
        """Takes what the ledger gives; it has booked it, so that even a late answer counts.

        Args:
            grant: From the ledger.
            now_s: Monotonic.
            needed: What it was asked for; 0 of an answer to a report.
        """
        self.held += grant.amount
        self.level = grant.level
        self.shared = max(0.0, grant.level)
        self._share = grant.share or self._share
        if needed and grant.wait_s:
            self._refused[_magnitude(needed)] = (needed, now_s + grant.wait_s)
        elif grant.amount:
            self._refused.clear()

    def draw(self, now_s: float) -> None:
        """Refills the slice of a replica that is alone."""
        if not self.alone:
            self.alone = True
            self._drawn_s = now_s
            if self._share is None and not self._drawn:  # no report was answered yet: half an equal part of all
                self._add(self.burst if self.level is None else min(self.burst, self.shared))
        elapsed_s = now_s - self._drawn_s
        self._drawn_s = now_s
        self._add(min(self.share * elapsed_s, self.burst - self.held))

    def meet(self) -> None:
        """Ends the time alone."""
        self.alone = False

    def report(self, now_s: float, *, last: bool = False) -> Holding:
        """Returns what the ledger should know; what is no longer needed is given back with it.

        Args:
            now_s: Monotonic.
            last: Nothing will be needed any more.
        """
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
        returned = 0.0 if self.alone else max(0.0, self.held - 2 * target)
        if returned and not unused and not target:
            returned = 0.0
        self.held -= returned
        drawn, self._drawn = self._drawn, 0.0
        wanted = 0.0 if self.alone else max(0.0, target - self.held)
        return Holding(self.terms, self.held, returned, wanted, self._demand_per_s, drawn, self.level)

    def _add(self, amount: float) -> None:
        if amount > 0:
            self.held += amount
            self._drawn += amount


class SeatSlice:
    """A replica's seats of a concurrency.

    Args:
        meter: What they are of.
        terms: The limit.
        replicas: As of `RateSlice`.
        now_s: Monotonic.

    Attributes:
        kind: Of the meter.
        held: Free seats.
        in_use: Seats of requests under way.
        level, alone, used_s: As of `RateSlice`.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        self.meter = meter
        self.kind = meter.kind
        self.terms = terms
        self.held = 0.0
        self.in_use = 0.0
        self.level: float | None = None
        self.alone = False
        self.used_s = now_s
        self._replicas = replicas
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
        self.settle(amount, 0.0)

    def settle(self, reserved: float, actual: float) -> None:
        """Frees the seat, whatever the request cost."""
        self.held += reserved
        self.in_use -= reserved
        self._refused_s = 0.0

    def ask(self, amount: float) -> Ask:
        """Returns what the ledger must give; of plenty as many again, for the time when it does not answer."""
        return Ask(self.terms, amount - self.held, self.in_use + amount if self._plenty else 0.0)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns a second if there is no seat: nobody knows when a request ends."""
        return _SEAT_WAIT_S if self.alone or now_s < self._refused_s else 0.0

    def apply(self, grant: Grant, now_s: float, needed: float = 0.0) -> None:
        self.held += grant.amount
        self.level = grant.level
        if needed and grant.wait_s:
            self._refused_s = now_s + _ASK_AGAIN_S

    def draw(self, now_s: float) -> None:
        """Begins the time alone: seats that are held stay; who never met the ledger has half an equal part."""
        if not self.alone and self.level is None and not self.held and not self.in_use:
            self.held = float(max(1, int(self.terms.capacity / (2 * self._replicas))))
        self.alone = True

    def meet(self) -> None:
        self.alone = False

    def report(self, now_s: float, *, last: bool = False) -> Holding:
        """Gives back the seats that nobody has used for two reports, where others may need them; the last one, all."""
        self._keep(self.in_use)
        if last:
            self.held = 0.0
        return Holding(self.terms, self.held + self.in_use, level=self.level)

    def _keep(self, least: float) -> None:
        """Keeps as many seats as were in use at a time lately, and no less than some number."""
        if not (self.alone or self._plenty):
            self.held = min(self.held, max(self._most, self._most_before, least) - self.in_use)
        self._most, self._most_before = self.in_use, self._most


Slice = RateSlice | SeatSlice
