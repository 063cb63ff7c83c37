"""Slots of a pool that are kept for requests of the higher classes. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from serve.config.access import PRIORITIES, RESERVED_CLASSES, ReservedClass


class ReservedSlots:
    """The numbers of a pool's slots that requests of each class may have at this gateway replica.

    What is reserved for a class is for those above it as well. Requests of a class and those below share the rest:
    gateway replicas that take from the same slots divide it by what they want, so that none of it is idle for long.

    Args:
        shares: Of the pool's slots, by the class for which they are reserved; the last class has none.
        slots: Returns the slots that gateway replicas divide; None if their number is unknown, and nothing is reserved.
    """

    def __init__(self, shares: Mapping[ReservedClass, float], slots: Callable[[], int | None]) -> None:
        self._shares = [shares.get(each, 0.0) for each in RESERVED_CLASSES]
        self._slots = slots
        self._held = [0] * len(PRIORITIES)
        self._elsewhere: Sequence[int] = self._held[:]

    def take(self, rank: int) -> None:
        """Counts a slot that a request of a class gets."""
        self._held[rank] += 1

    def give_back(self, rank: int) -> None:
        """Counts a slot that a request of a class had."""
        self._held[rank] -= 1

    def wanted(self, waiting: Sequence[int]) -> tuple[int, ...]:
        """Returns how many requests of each class wait or have a slot, for other gateway replicas.

        Args:
            waiting: How many wait, by class.
        """
        return tuple(map(sum, zip(waiting, self._held, strict=True)))

    def merge(self, wanted: Sequence[int]) -> None:
        """Takes what all other gateway replicas want, by class; empty if there are none."""
        self._elsewhere = wanted or [0] * len(PRIORITIES)

    def may_have(self, rank: int, waiting: Sequence[int]) -> bool:
        """Returns True if a request of a class may have one more slot.

        Args:
            rank: Of the class.
            waiting: How many wait, by class.
        """
        return all(room >= 1 for room in self._rooms(waiting)[: rank + 1])

    def eligible(self, waiting: Sequence[int]) -> int:
        """Returns how many of those that wait may have a slot, if there were enough.

        Args:
            waiting: How many wait, by class.
        """
        rooms = self._rooms(waiting)
        total = 0
        for rank, count in enumerate(waiting):
            most = max(0, min([count, *rooms[: rank + 1]]))
            rooms = [room - most * (highest <= rank) for highest, room in enumerate(rooms)]
            total += most
        return total

    def _rooms(self, waiting: Sequence[int]) -> list[int]:
        """Returns how many more slots requests of each class and those below may have together."""
        slots = self._slots()
        if not slots:
            return [sum(waiting) + 1] * len(PRIORITIES)
        reserved = accumulate((math.ceil(share * slots) for share in self._shares), initial=0)
        return [self._room(highest, slots - kept, waiting) for highest, kept in enumerate(reserved)]

    def _room(self, highest: int, slots: int, waiting: Sequence[int]) -> int:
        held = sum(self._held[highest:])
        if not highest:
            return slots + sum(waiting)  # the first class may have whatever there is
        wanted = held + max(1, sum(waiting[highest:]))
        part = slots * wanted // (wanted + sum(self._elsewhere[highest:]))
        return max(1, part) - held  # one at least, or some would wait for those at other replicas to end
