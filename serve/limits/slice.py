"""What one gateway replica holds of one meter: given in advance by the ledger, spent without asking."""

from serve.limits.messages import Ask, Grant, Holding, Meter, Terms

_AHEAD_S = 1.5  # of its demand that a replica wants to hold: until the next answer of the ledger, and some more
_UNUSED_S = 2.0  # after which what is held goes back
_SEAT_WAIT_S = 1.0
_ASK_AGAIN_S = 0.05  # after the ledger has said that no seat is free
_SMOOTHING = 0.5  # weight of the last second in the demand


class RateSlice:
    """A replica's slice of a rate.

    Args:
        meter: What it is of.
        terms: The limit.
        replicas: That there are, for the time before the ledger has answered.
        now_s: Monotonic.

    Attributes:
        held: What may be spent; below zero after requests that cost more than was reserved for them.
        level: Of the shared bucket, as told last; None if it never was.
        alone: The ledger does not answer, so that the slice refills itself at `share`.
        used_s: When something was last spent.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        self.meter = meter
        self.terms = terms
        self.held = 0.0
        self.level: float | None = None
        self.used_s = now_s
        self.alone = False
        self._replicas = replicas
        self._share: float | None = None
        self._drawn = 0.0
        self._drawn_s = now_s
        self._spent = 0.0
        self._demand_per_s = 0.0
        self._reported_s = now_s
        self._refused = (0.0, 0.0)  # what was needed, and until when it will not be there

    @property
    def busy(self) -> bool:
        """True if requests under way hold something of it."""
        return False

    @property
    def share(self) -> float:
        """What flows in each second while the ledger does not answer."""
        return self.terms.rate_per_s / (2 * self._replicas) if self._share is None else self._share

    @property
    def burst(self) -> float:
        """The most that a lone slice holds."""
        return self.terms.capacity * self.share / self.terms.rate_per_s

    @property
    def remaining(self) -> float:
        """What the whole scope has left, as far as this replica knows."""
        return max(0.0, self.held + max(0.0, self.level or 0.0))

    def reset_s(self) -> float:
        """Seconds until the whole bucket is full again."""
        return max(0.0, self.terms.capacity - self.remaining) / self.terms.rate_per_s

    def affords(self, amount: float) -> bool:
        """True if an amount may be spent now."""
        return self.held >= amount or (self.alone and self.held >= min(amount, self.burst))

    def spend(self, amount: float, now_s: float) -> None:
        self.held -= amount
        self._spent += amount
        self.used_s = now_s

    def undo(self, amount: float) -> None:
        """Takes back a spending that led to nothing."""
        self.held += amount
        self._spent -= amount

    def settle(self, reserved: float, actual: float) -> None:
        """Returns what was reserved and not used, or owes what was used beyond; no more than a full bucket."""
        difference = reserved - actual
        self._spent = max(0.0, self._spent - difference)
        self.held = max(self.held + difference, min(self.held, -self.terms.capacity))

    def ask(self, amount: float) -> Ask:
        """Returns what the ledger must give before an amount may be spent."""
        return Ask(self.terms, amount - self.held, self._demand_per_s * _AHEAD_S)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until an amount could be there; 0 if nobody has said that it is not."""
        if self.alone:
            missing = min(amount, self.burst) - self.held
            return missing / self.share if self.share else 1.0
        needed, until_s = self._refused
        return max(0.0, until_s - now_s) if amount - self.held >= needed else 0.0

    def apply(self, grant: Grant, now_s: float, needed: float = 0.0) -> None:
        """Takes what the ledger gives; it has booked it, so that even a late answer counts.

        Args:
            grant: From the ledger.
            now_s: Monotonic.
            needed: What it was asked for; 0 of an answer to a report.
        """
        self.held += grant.amount
        self.level = grant.level
        self._share = grant.share or self._share
        if needed and grant.wait_s:
            self._refused = (needed, now_s + grant.wait_s)
        elif grant.amount:
            self._refused = (0.0, 0.0)

    def draw(self, now_s: float) -> None:
        """Refills the slice of a replica that is alone."""
        if not self.alone:
            self.alone = True
            self._drawn_s = now_s
            if self._share is None and not self._drawn:  # it has never met the ledger: half an equal part of all
                self._add(self.burst)
        elapsed_s = now_s - self._drawn_s
        self._drawn_s = now_s
        self._add(min(self.share * elapsed_s, self.burst - self.held))

    def meet(self) -> None:
        """Ends the time alone."""
        self.alone = False

    def report(self, now_s: float) -> Holding:
        """Returns what the ledger should know; what is no longer needed is given back with it."""
        elapsed_s = max(now_s - self._reported_s, 1e-3)
        self._reported_s = now_s
        self._demand_per_s += _SMOOTHING * (self._spent / elapsed_s - self._demand_per_s)
        self._spent = 0.0
        unused = now_s - self.used_s > _UNUSED_S
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
        held: Free seats.
        in_use: Seats of requests under way.
        level, alone, used_s: As of `RateSlice`.
    """

    def __init__(self, meter: Meter, terms: Terms, replicas: int, now_s: float) -> None:
        self.meter = meter
        self.terms = terms
        self.held = 0.0
        self.in_use = 0.0
        self.level: float | None = None
        self.alone = False
        self.used_s = now_s
        self._replicas = replicas
        self._refused_s = 0.0  # until when the ledger need not be asked again

    @property
    def busy(self) -> bool:
        """True if requests under way hold something of it."""
        return self.in_use > 0

    @property
    def remaining(self) -> float:
        """Seats that are free, as far as this replica knows."""
        return max(0.0, self.held + max(0.0, self.level or 0.0))

    def affords(self, amount: float) -> bool:
        return self.held >= amount

    def spend(self, amount: float, now_s: float) -> None:
        self.held -= amount
        self.in_use += amount
        self.used_s = now_s

    def undo(self, amount: float) -> None:
        self.settle(amount, 0.0)

    def settle(self, reserved: float, actual: float) -> None:
        """Frees the seat, whatever the request cost."""
        self.held += reserved
        self.in_use -= reserved
        self._refused_s = 0.0

    def ask(self, amount: float) -> Ask:
        return Ask(self.terms, amount - self.held)

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

    def report(self, now_s: float) -> Holding:
        """Gives back the seats that nobody has used for a while."""
        if now_s - self.used_s > _UNUSED_S and not self.alone:
            self.held = 0.0
        return Holding(self.terms, self.held + self.in_use, level=self.level)


Slice = RateSlice | SeatSlice
