"""Messages between a cluster's ledger and the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from serve.limits.messages import Meter


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cluster's state of one meter, and its need.

    Attributes:
        rate, capacity: As of `Terms`.
        prev: Number of the message before this one that told of the meter, and was answered; 0 if there was none.
        told: The bucket's level in that answer.
        told_at: The store's time of it.
        owed: Spent without having been given; below zero it is given back.
        needed: All of it or nothing.
        wanted: In advance, as much as there is.
        demand: What the cluster spends in each second.
        share: Of the rate that the cluster would refill its slice at.
        claimed: Of concurrency: the seats that the cluster has; None for rates.
    """

    rate: float
    capacity: float
    prev: int = 0
    told: float = 0.0
    told_at: float = 0.0
    owed: float = 0.0
    needed: float = 0.0
    wanted: float = 0.0
    demand: float = 0.0
    share: float = 0.0
    claimed: float | None = None


class Spent(NamedTuple):
    """A scope's spending of a month by a cluster's own book; it only ever grows, so nothing is counted twice.

    Attributes:
        book: Identity of the book.
        month: Such as `2026-11`.
        cost: In weighted tokens, of the whole month so far.
    """

    book: str
    month: str
    cost: float


@dataclass(frozen=True)
class Message:
    """A cluster's message, sent again under the same number until it is answered.

    Attributes:
        member: A name that no other ledger ever has.
        number: Counts up from 1.
        entries: By meter.
        spent: By scope.
    """

    member: str
    number: int
    entries: Mapping[Meter, Entry] = field(default_factory=dict)
    spent: Mapping[str, Spent] = field(default_factory=dict)


class Advance(NamedTuple):
    """The store's part for a cluster, of one meter.

    Attributes:
        amount, level, share, wait_s: As of `Grant`.
        settling: The store was away, or has lost something: it gives nothing until all clusters have told what they
            have.
    """

    amount: float
    level: float
    share: float
    wait_s: float
    settling: bool


@dataclass(frozen=True)
class Answer:
    """The store's answer.

    Attributes:
        at: Its time, in seconds since 1970.
        advances: By meter.
        spent: By scope, of all clusters together.
    """

    at: float
    advances: Mapping[Meter, Advance] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)


class Store(Protocol):
    """A cluster's way to the store."""

    async def exchange(self, message: Message) -> Answer:
        """Takes a message; one that it took before gets the same answer.

        Raises:
            SharedStateError: The store can't be reached, or not all of it was answered.
        """
        ...

    async def close(self) -> None: ...
