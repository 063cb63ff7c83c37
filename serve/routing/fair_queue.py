"""The order of requests that wait: a Virtual Token Counter for each class of priority. Pure.

The algorithm is that of "Fairness in Serving Large Language Models" (OSDI '24): a tenant's counter grows by the cost of
what it is given, divided by its weight, and the waiting tenant with the lowest counter is next. What a request is going
to cost is estimated when it gets a slot, and corrected when it has used it.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serve.config.access import PRIORITIES, RequestPriority
from serve.routing.class_queue import Asker, ClassQueue, Turn
from serve.routing.reserved_slots import ReservedSlots

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue's message to those of the same pool in other gateway replicas, or the sum of several.

    Attributes:
        given: What tenants were charged over their weights since the last report, by class and tenant. Tenants that
            wait and were given nothing are in it, with 0.
        wanted: Requests that wait or have a slot, by class; empty if nobody needs to know.
    """

    given: Mapping[tuple[int, str], float] = field(default_factory=dict)
    wanted: tuple[int, ...] = ()


class FairQueue(Generic[T]):
    """Items that wait, each for an asker.

    Classes are served in strict order. Within a class tenants share by weight, and a tenant's oldest item is first.

    Args:
        starve_s: After so many seconds in a class, an item moves to the end of the class above.
        reserved: Slots that are kept for higher classes; None if none are.
    """

    def __init__(self, starve_s: float, reserved: ReservedSlots | None = None) -> None:
        self._starve_s = starve_s
        self._reserved = reserved
        self._classes = [ClassQueue[T](rank, reserved) for rank in range(len(PRIORITIES))]
        # From class to the one above, the highest first, so that an item moves by one class at a time.
        self._steps = tuple(zip(self._classes[1:], self._classes[:-1], strict=True))
        self._places: dict[T, tuple[Asker, ClassQueue[T]]] = {}
        self._tenants: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def waiting(self, tenant: str) -> int:
        """Returns how many items of a tenant wait."""
        return self._tenants.get(tenant, 0)

    def counts(self) -> Counter[tuple[str, RequestPriority]]:
        """Returns how many items wait, by tenant and by the priority that they came with."""
        return Counter((asker.tenant, PRIORITIES[asker.rank]) for asker, _ in self._places.values())

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

    def take(self, item: T) -> Turn:
        """Takes an item out that is served, and charges its tenant. It must be waiting."""
        asker, class_ = self._places[item]
        turn = class_.begin(asker)
        self.remove(item)
        return turn

    def charge(self, asker: Asker) -> Turn:
        """Charges for a request that is served without waiting."""
        class_ = self._classes[asker.rank]
        class_.lift(asker)
        return class_.begin(asker)

    def eligible(self, now_s: float) -> int:
        """Returns how many items may be served, if there are slots: not those of classes that have all they may have.

        Args:
            now_s: The present time.
        """
        if self._reserved is None:
            return len(self)
        self._promote(now_s)
        return self._reserved.eligible(self._counts())

    def may_have(self, asker: Asker) -> bool:
        """Returns True if no reserved slot would be taken by serving a request."""
        return self._reserved is None or self._reserved.may_have(asker.rank, self._counts())

    def report(self) -> QueueReport:
        """Returns what the others should know; what was given before is reported once."""
        given = {(rank, name): cost for rank, each in enumerate(self._classes) for name, cost in each.report().items()}
        return QueueReport(given, () if self._reserved is None else self._reserved.wanted(self._counts()))

    def merge(self, others: QueueReport) -> None:
        """Takes what all other queues of the pool have reported since their last report.

        Tenants that were given more there than others were are put back here.
        """
        for rank, class_ in enumerate(self._classes):
            class_.merge({tenant: cost for (of, tenant), cost in others.given.items() if of == rank})
        if self._reserved is not None:
            self._reserved.merge(others.wanted)

    def first(self, now_s: float) -> T | None:
        """Returns the item that is to be served now; None if nothing waits, or nothing that may be served.

        Args:
            now_s: The present time.
        """
        if not self._places:
            return None
        self._promote(now_s)
        rank, class_ = next((rank, each) for rank, each in enumerate(self._classes) if each.waiting)
        if self._reserved is not None and not self._reserved.may_have(rank, self._counts()):
            return None  # nor may those below
        return class_.first()

    def last(self) -> T | None:
        """Returns the item that is to be refused if one must be; None if nothing waits.

        It is the newest of the tenant with the most waiting for its weight.
        """
        newest = {asker.tenant: (asker, item) for item, (asker, _) in self._places.items()}
        if not newest:
            return None
        return max(newest.values(), key=lambda each: self._tenants[each[0].tenant] / each[0].weight)[1]

    def _counts(self) -> list[int]:
        return [len(class_) for class_ in self._classes]

    def _promote(self, now_s: float) -> None:
        """Moves what has waited too long up by one class."""
        for lower, upper in self._steps:
            for item in lower.joined_before(now_s - self._starve_s):
                asker, _ = self._places[item]
                lower.leave(item, asker)
                upper.join(item, asker, now_s)
                self._places[item] = asker, upper
