"""A token bucket with continuous refill that may go into debt."""

import math


class Bucket:
    """The part of one rate that may be spent.

    Over any time, no more is taken than rate x time + capacity; a single amount above the capacity, which passes when
    the bucket is full, adds what it has above that.

    Args:
        rate_per_s: What flows in each second.
        capacity: What may be spent at once.
        level: What is there at the start.
        now_s: Seconds of any clock that never goes back.

    Attributes:
        level: What is there, as of the last call; below zero it is a debt.
    """

    __slots__ = ("_at_s", "_inherited", "capacity", "level", "rate_per_s")

    def __init__(self, rate_per_s: float, capacity: float, level: float, now_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self.level = min(level, capacity)
        self._at_s = now_s
        self._inherited = False

    @property
    def share(self) -> float:
        """The rate that those who spend it may divide among themselves while they are on their own."""
        return self.rate_per_s

    def inherit(self, level: float, alone_s: float, now_s: float) -> None:
        """Goes on with another bucket's debt, whose level was last told some time ago; the deepest one counts.

        What lay in it is forgotten, since nobody knows how much of it was given away. The level may be above the
        capacity until it is told what was drawn of it meanwhile.
        """
        level = min(level, 0.0) + self.rate_per_s * alone_s
        self.level = min(self.refill(now_s), level) if self._inherited else level
        self._inherited = True

    def refill(self, now_s: float) -> float:
        """Lets in what has come since the last call; returns the level."""
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self._at_s = now_s
            if self.level < self.capacity:
                self.level = min(self.capacity, self.level + self.rate_per_s * elapsed_s)
        return self.level

    def take(self, amount: float, now_s: float) -> bool:
        """Takes an amount, all of it or nothing; one above the capacity passes when the bucket is full."""
        if self.refill(now_s) < min(amount, self.capacity):
            return False
        self.level -= amount
        return True

    def take_some(self, amount: float, now_s: float) -> float:
        """Takes as much of an amount as there is; returns how much that was."""
        taken = max(0.0, min(amount, self.refill(now_s)))
        self.level -= taken
        return taken

    def give(self, amount: float, now_s: float) -> None:
        """Returns what was taken and not used; more than the capacity runs over."""
        self.level = min(self.capacity, self.refill(now_s) + amount)

    def owe(self, amount: float, now_s: float) -> None:
        """Subtracts what was spent without having been taken."""
        self.level = self.refill(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until an amount can be taken if nobody else takes anything."""
        missing = min(amount, self.capacity) - self.refill(now_s)
        if missing <= 0:
            return 0.0
        return missing / self.rate_per_s if self.rate_per_s else math.inf

    def change(self, rate_per_s: float, capacity: float, now_s: float) -> None:
        """Adopts other terms; what has flowed in so far stays, up to the new capacity."""
        self.refill(now_s)
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self.level = min(self.level, capacity)
