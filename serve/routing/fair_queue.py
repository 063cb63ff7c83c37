"""The order of requests that wait: a Virtual Token Counter for each class of priority, and slots that are kept for the
higher classes. Pure.

The algorithm is that of "Fairness in Serving Large Language Models" (OSDI '24): a tenant's counter grows by the cost of
what it is given, divided by its weight, and the waiting tenant with the lowest counter is next. What a request is going
to cost is estimated when it gets a slot, and corrected when it has used it.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, TypeVar

from msgspec import Struct

from serve.config.access import PRIORITIES, RESERVED_CLASSES, RequestPriority, ReservedClass

T = TypeVar("T", bound=Hashable)

_LEAST_COST = 1.0  # or requests that cost nothing would be next for ever
_KEPT_SHARE = 0.1  # that a tenant has at least at each gateway replica, whatever it has at others
_KEPT_REPORTS = 20  # for which a tenant that is busy elsewhere keeps what it is behind here


class Asker(Struct, frozen=True):
    """On whose behalf a request asks for a slot.

    Attributes:
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


class Turn:
    """One request's turn, and the charge to its tenant for it: the asker's cost, until `settle` tells another one.

    Attributes:
        used: Returns what the request has used, in the unit of `Asker.cost`; None if nobody measures that.
    """

    __slots__ = ("_asker", "_charged", "_class", "used")

    def __init__(self, class_: "ClassQueue[Any]", asker: Asker) -> None:
        self._class = class_
        self._asker = asker
        self._charged = max(asker.cost, _LEAST_COST)
        self.used: Callable[[], float] | None = None
        class_.charge(asker, self._charged)

    def settle(self, cost: float) -> None:
        """Charges what the request has used, in the unit of `Asker.cost`, instead of what it was charged before."""
        cost = max(cost, _LEAST_COST)
        self._class.charge(self._asker, cost - self._charged)
        self._charged = cost

    def undo(self) -> None:
        """Charges nothing: the request never used what it was given."""
        self._class.charge(self._asker, -self._charged)
        self._charged = 0.0

    def end(self) -> None:
        """Says that the request has its slot no longer, before that is handed on.

        What the request has used is charged first, because who is next depends on it.
        """
        if self.used is not None:
            self.settle(self.used())
        self._class.end()


class ReservedSlots:
    """The numbers of a pool's slots that requests of each class may have at this gateway replica.

    What is reserved for a class is for those above it as well. Requests of a class and those below share the rest:
    gateway replicas that take from the same slots divide it by what they want, so that none of it is idle for long.
    `waiting` is how many wait, by class. While the number of slots is unknown (None), nothing is reserved.
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
        """Returns how many requests of each class wait or have a slot, for other gateway replicas."""
        return tuple(map(sum, zip(waiting, self._held, strict=True)))

    def merge(self, wanted: Sequence[int]) -> None:
        """Takes what all other gateway replicas want, by class; empty if there are none."""
        self._elsewhere = wanted or [0] * len(PRIORITIES)

    def may_have(self, rank: int, waiting: Sequence[int]) -> bool:
        """Returns True if a request of a class may have one more slot."""
        return all(room >= 1 for room in self._rooms(waiting)[: rank + 1])

    def eligible(self, waiting: Sequence[int]) -> int:
        """Returns how many of those that wait may have a slot, if there were enough."""
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


class ClassQueue(Generic[T]):
    """The items of one class of priority.

    Attributes:
        waiting: By tenant, oldest first; tenants without an item are not in it.
    """

    def __init__(self, rank: int, reserved: ReservedSlots | None) -> None:
        self._rank = rank
        self._reserved = reserved
        self.waiting: dict[str, dict[T, None]] = {}
        self._joined_s: dict[T, float] = {}
        self._counters: dict[str, float] = {}
        self._running = 0  # items that have a slot
        self._served = ""  # the tenant that was served last
        self._given: dict[str, float] = {}  # since the last report
        self._reported: Mapping[str, float] = {}
        self._elsewhere: frozenset[str] = frozenset()  # tenants with requests at other gateway replicas
        self._kept = 0.0

    def __len__(self) -> int:
        return len(self._joined_s)

    def join(self, item: T, asker: Asker, now_s: float) -> None:
        if asker.tenant not in self.waiting:
            self.lift(asker)
            self.waiting[asker.tenant] = {}
        self.waiting[asker.tenant][item] = None
        self._joined_s[item] = now_s

    def leave(self, item: T, asker: Asker) -> None:
        items = self.waiting[asker.tenant]
        del items[item], self._joined_s[item]
        if not items:
            del self.waiting[asker.tenant]

    def lift(self, asker: Asker) -> None:
        """Takes from a tenant that comes back what it would have saved up while it wanted nothing.

        It keeps enough for as many requests to be next as run now. If it kept one, a tenant whose requests come at
        random, and that uses less than its share, would wait as one that uses more, whenever two of them meet.
        """
        tenant = asker.tenant
        if tenant in self.waiting:
            return
        counters = self._counters
        floor = min(map(counters.__getitem__, self.waiting)) if self.waiting else counters.get(self._served, 0.0)
        kept = max(1, self._running) * asker.cost / asker.weight
        if tenant in self._elsewhere:  # it never went away
            kept = max(kept, self._kept)
        counters[tenant] = max(counters.get(tenant, 0.0), floor - kept)

    def begin(self, asker: Asker) -> Turn:
        self._served = asker.tenant
        self._running += 1
        if self._reserved is not None:
            self._reserved.take(self._rank)
        return Turn(self, asker)

    def end(self) -> None:
        self._running -= 1
        if self._reserved is not None:
            self._reserved.give_back(self._rank)

    def charge(self, asker: Asker, cost: float) -> None:
        share = cost / asker.weight
        self._counters[asker.tenant] += share
        self._given[asker.tenant] = self._given.get(asker.tenant, 0.0) + share

    def report(self) -> Mapping[str, float]:
        self._reported, self._given = {**dict.fromkeys(self.waiting, 0.0), **self._given}, {}
        return self._reported

    def merge(self, others: Mapping[str, float]) -> None:
        """Adds what others gave, but only by how much it differs between tenants that compete here.

        What a tenant was given where it was alone takes nothing from anybody. And no tenant is put back so far that it
        keeps less than `_KEPT_SHARE` of its share here, whatever it has elsewhere.
        """
        here = {tenant: others.get(tenant, 0.0) for tenant in (*self.waiting, *self._reported)}
        share = max(0.0, sum(self._reported.values())) / max(1, len(here))
        self._elsewhere = frozenset(others)
        self._kept = _KEPT_REPORTS * share
        least = min(here.values(), default=0.0)
        most = max(here.values(), default=0.0) - least
        if most > 0.0:
            # Whom `b` puts back gets, of k tenants, its share less (k - 1) / k of `b`.
            bound = (1.0 - _KEPT_SHARE) * share * len(here) / (len(here) - 1)
            for tenant, cost in here.items():
                self._counters[tenant] += (cost - least) * min(1.0, bound / most)

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

    Classes are served in strict order. Within a class tenants share by weight, and a tenant's oldest item is first. An
    item that has been in a class for `starve_s` moves to the end of the class above.
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
        """Lets an item wait. It must not wait already, and time must not go back."""
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
        """Returns how many items may be served, if there are slots: none of a class that has all it may have."""
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
        """Returns the item that is to be served now; None if nothing waits, or nothing that may be served."""
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
