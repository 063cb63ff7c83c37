"""Who is next where requests wait: a Virtual Token Counter for each class of priority. Pure.

The algorithm is that of "Fairness in Serving Large Language Models" (OSDI '24): a tenant's counter grows by the cost of
what it is given, divided by its weight, and the waiting tenant with the lowest counter is next.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from serve.config.access import PRIORITIES

T = TypeVar("T", bound=Hashable)

_LEAST_COST = 1.0  # or requests that cost nothing would be next for ever


@dataclass(frozen=True, slots=True)
class Asker:
    """On whose behalf a request asks for a slot.

    Attributes:
        tenant: Its name.
        weight: Its share where tenants compete, relative to the others'.
        rank: The place of the request's priority in `PRIORITIES`; 0 is served first.
        cost: What the request will probably cost, in any unit that all requests of a gateway share.
        queued: The most requests of its tenant that may wait for one pool; None for no limit of its own.
    """

    tenant: str
    weight: float = 1.0
    rank: int = PRIORITIES.index("standard")
    cost: float = _LEAST_COST
    queued: int | None = None


ANONYMOUS = Asker("default")


class FairQueue(Generic[T]):
    """Items that wait, each for an asker.

    Classes are served in strict order. Within a class tenants share by weight, and a tenant's oldest item is first.

    Args:
        starve_s: After so many seconds in a class, an item moves to the end of the class above.
    """

    def __init__(self, starve_s: float) -> None:
        self._starve_s = starve_s
        self._classes = [_Class[T]() for _ in PRIORITIES]
        # From class to the one above, the highest first, so that an item moves by one class at a time.
        self._steps = tuple(zip(self._classes[1:], self._classes[:-1], strict=True))
        self._places: dict[T, tuple[Asker, _Class[T]]] = {}
        self._tenants: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def waiting(self, tenant: str) -> int:
        """Returns how many items of a tenant wait."""
        return self._tenants.get(tenant, 0)

    def add(self, item: T, asker: Asker, now_s: float) -> None:
        """Lets an item wait.

        Args:
            item: What waits; it must not wait already.
            asker: On whose behalf.
            now_s: The present time, which must not go back.
        """
        class_ = self._classes[asker.rank]
        self._places[item] = asker, class_
        self._tenants[asker.tenant] = self.waiting(asker.tenant) + 1
        class_.join(item, asker, now_s)

    def remove(self, item: T) -> None:
        """Takes an item out that gets nothing. It must be waiting."""
        asker, class_ = self._places.pop(item)
        class_.leave(item, asker)
        if self._tenants[asker.tenant] > 1:
            self._tenants[asker.tenant] -= 1
        else:
            del self._tenants[asker.tenant]

    def take(self, item: T) -> None:
        """Takes an item out that was served, and charges its tenant. It must be waiting."""
        asker, class_ = self._places[item]
        class_.charge(asker)
        self.remove(item)

    def charge(self, asker: Asker) -> None:
        """Charges for a request that was served without waiting."""
        class_ = self._classes[asker.rank]
        class_.lift(asker.tenant)
        class_.charge(asker)

    def first(self, now_s: float) -> T | None:
        """Returns the item that is to be served now; None if nothing waits.

        Args:
            now_s: The present time.
        """
        if not self._places:
            return None
        self._promote(now_s)
        return next(class_.first() for class_ in self._classes if class_.waiting)

    def last(self) -> T | None:
        """Returns the item that is to be refused if one must be; None if nothing waits.

        It is the newest of the tenant with the most waiting for its weight.
        """
        newest = {asker.tenant: (asker, item) for item, (asker, _) in self._places.items()}
        if not newest:
            return None
        return max(newest.values(), key=lambda each: self._tenants[each[0].tenant] / each[0].weight)[1]

    def _promote(self, now_s: float) -> None:
        """Moves what has waited too long up by one class."""
        for lower, upper in self._steps:
            for item in lower.joined_before(now_s - self._starve_s):
                asker, _ = self._places[item]
                lower.leave(item, asker)
                upper.join(item, asker, now_s)
                self._places[item] = asker, upper


class _Class(Generic[T]):
    """The items of one class of priority.

    Attributes:
        waiting: By tenant, oldest first; tenants without an item are not in it.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, dict[T, None]] = {}
        self._joined_s: dict[T, float] = {}
        self._counters: dict[str, float] = {}
        self._served = ""  # the tenant that was served last

    def join(self, item: T, asker: Asker, now_s: float) -> None:
        if asker.tenant not in self.waiting:
            self.lift(asker.tenant)
            self.waiting[asker.tenant] = {}
        self.waiting[asker.tenant][item] = None
        self._joined_s[item] = now_s

    def leave(self, item: T, asker: Asker) -> None:
        items = self.waiting[asker.tenant]
        del items[item], self._joined_s[item]
        if not items:
            del self.waiting[asker.tenant]

    def lift(self, tenant: str) -> None:
        """Takes from a tenant that comes back what it would have saved up while it wanted nothing."""
        if tenant in self.waiting:
            return
        counters = self._counters
        floor = min(map(counters.__getitem__, self.waiting)) if self.waiting else counters.get(self._served, 0.0)
        counters[tenant] = max(counters.get(tenant, 0.0), floor)

    def charge(self, asker: Asker) -> None:
        self._counters[asker.tenant] += max(asker.cost, _LEAST_COST) / asker.weight
        self._served = asker.tenant

    def first(self) -> T:
        """Returns the oldest item of the tenant with the lowest counter; of equal ones, of the one that came first."""
        tenant = min(self.waiting, key=self._counters.__getitem__)
        return next(iter(self.waiting[tenant]))

    def joined_before(self, time_s: float) -> list[T]:
        """Returns what has been here since before a time, oldest first."""
        early: list[T] = []
        for item, joined_s in self._joined_s.items():
            if joined_s > time_s:
                break
            early.append(item)
        return early
