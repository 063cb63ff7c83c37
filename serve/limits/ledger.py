"""The ledger that all gateway replicas share: gives out in advance what they spend, and books usage."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from serve.limits.bucket import FORGET_S, OwnSupply
from serve.limits.messages import Grant, Grants, Holding, Meter, Spending, Statement, UsageKey, UsageSums
from serve.shared.report import SETTLE_S, Answer, Pending, Register, Report

_SMALLEST_WEIGHT = 1e-3  # of a replica without demand, so that every replica has some share


class Book(Protocol):
    """The book of usage and of the spending of months."""

    def add(
        self,
        replica: str,
        number: int,
        usage: Mapping[UsageKey, UsageSums],
        spent: Iterable[Spending],
        at: datetime,
    ) -> None:
        """Adds what a report says, unless it did before."""
        ...

    def spending(self, scopes: Iterable[str], at: datetime) -> Mapping[str, float]:
        """Returns what scopes have spent in a month."""
        ...


class Supply(Protocol):
    """Where the ledger takes from what it gives out, if that is not its own: a store that several clusters share."""

    @property
    def clusters(self) -> int:
        """The number of clusters that share it."""
        ...

    async def exchange(self, report: Report[Statement, Grants], parts: Mapping[Meter, int]) -> Mapping[Meter, Grant]:
        """Books a report and gives what it needs, once for each number; raises `SharedStateError` if it can't."""
        ...

    async def spending(self, own: Mapping[str, float], at: datetime) -> Mapping[str, float]:
        """Returns what all clusters have spent in a month, by what this one has."""
        ...


@dataclass(slots=True)
class _Member:
    """A replica that spends of one rate.

    Attributes:
        at_s: When it last said so.
        demand_per_s: What it spends.
        share: The most that it may take for its share: that of its last report, or of the answer to it.
    """

    at_s: float
    demand_per_s: float
    share: float


class Shares:
    """The shares of one rate, which replicas spend while the ledger does not answer; their sum is never above it."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}

    @property
    def busy(self) -> int:
        """Replicas that spend something."""
        return sum(member.demand_per_s > 0 for member in self._members.values())

    def book(self, replica: str, holding: Holding, now_s: float) -> None:
        """Notes a replica's demand, and the share that it has now: its last answer has arrived."""
        self._members[replica] = _Member(now_s, holding.demand_per_s, holding.share)

    def grant(self, replica: str, holding: Holding, rate_per_s: float, replicas: int, now_s: float) -> float:
        """Returns a replica's share, by demand.

        It grows only by what others are known to have given up. An answer that may not have arrived changes nothing for
        them: the replica may have either share.

        Args:
            replica: Its name.
            holding: What it has said.
            rate_per_s: To be shared.
            replicas: That there are. Those which have not met this limit would begin with half of an equal part.
            now_s: Monotonic.
        """
        self._members = {name: each for name, each in self._members.items() if now_s - each.at_s <= FORGET_S}
        if replica not in self._members:
            self.book(replica, holding, now_s)
        weights = {name: max(each.demand_per_s, _SMALLEST_WEIGHT) for name, each in self._members.items()}
        strangers = max(0, replicas - len(weights))
        rate_per_s *= 1 - strangers / (2 * (strangers + len(weights)))
        others = sum(each.share for name, each in self._members.items() if name != replica)
        share = max(0.0, min(rate_per_s * weights[replica] / sum(weights.values()), rate_per_s - others))
        self._members[replica].share = max(share, self._members[replica].share)
        return share

    def is_idle(self, now_s: float) -> bool:
        """Returns True if no replica has been heard of."""
        return all(now_s - each.at_s > FORGET_S for each in self._members.values())


class Ledger:
    """Gives out in advance what replicas spend.

    Args:
        book: Keeps usage.
        settle_s: As for `Register`.
        clock: Monotonic seconds.
        calendar: The time of day.
        supply: What several clusters share; None: the limits are this ledger's own.
    """

    def __init__(
        self,
        book: Book,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
        supply: Supply | None = None,
    ) -> None:
        self._usage = book
        self._clock = clock
        self._calendar = calendar
        self._supply = supply
        self._own = OwnSupply()
        self._shares: dict[Meter, Shares] = {}
        self._heard_s: dict[str, float] = {}
        self._settled_s = clock() + settle_s
        # What a store gives needs no time to settle, only shares do.
        settle_s = settle_s if supply is None else 0.0
        self._register: Register[Statement, Grants] = Register(self._book, self._answer, None, settle_s, clock)

    def take(self, report: Report[Statement, Grants]) -> Awaitable[Answer[Grants] | Pending]:
        """Takes a report; see `Register.take`."""
        return self._register.take(report)

    def _book(self, report: Report[Statement, Grants]) -> None:
        now_s, statement = self._clock(), report.content
        self._usage.add(report.replica, report.number, statement.usage, statement.spent, self._calendar())
        self._heard_s[report.replica] = now_s
        self._heard_s = {name: at_s for name, at_s in self._heard_s.items() if now_s - at_s <= FORGET_S}
        if self._supply is None:
            self._own.book(report.replica, statement.holdings, report.age_s, now_s)
        for meter, holding in statement.holdings.items():
            if meter.kind != "concurrency":
                self._shares.setdefault(meter, Shares()).book(report.replica, holding, now_s)

    async def _answer(self, report: Report[Statement, Grants]) -> Grants:
        now_s, statement, at = self._clock(), report.content, self._calendar()
        rates = [meter for meter in statement.holdings if meter.kind != "concurrency"]
        parts = {meter: self._shares[meter].busy if meter in self._shares else 1 for meter in rates}
        spent = self._usage.spending(statement.quotas, at)
        if self._supply is None:
            clusters = 1
            grants = self._own.grant(report.replica, statement.holdings, parts, now_s)
        else:
            clusters = self._supply.clusters
            grants = dict(await self._supply.exchange(report, parts))
            spent = await self._supply.spending(spent, at) if spent else spent
        for meter in rates:
            holding = statement.holdings[meter]
            rate_per_s = holding.terms.rate_per_s / clusters
            shares = self._shares.setdefault(meter, Shares())
            share = shares.grant(report.replica, holding, rate_per_s, len(self._heard_s), now_s)
            if now_s < self._settled_s:
                share = min(share, holding.share)
            grants[meter] = grants[meter]._replace(share=share)
        self._shares = {meter: each for meter, each in self._shares.items() if not each.is_idle(now_s)}
        return Grants(grants, spent)
