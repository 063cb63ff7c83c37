"""The ledger that all gateway replicas share: gives out in advance what they spend, and books usage."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from serve.errors import SharedStateError
from serve.limits.book import UsageBook
from serve.limits.bucket import FORGET_S, OwnBuckets
from serve.limits.ledger_messages import Grant, Grants, Holding, LimitId, Statement
from serve.limits.quota import month_of
from serve.shared.report import SETTLE_S, Acknowledgement, Pending, Register, Report

_SMALLEST_WEIGHT = 1e-3  # of a replica without demand, so that every replica has some share

log = logging.getLogger("ray.serve.specgate.limits")


class Buckets(Protocol):
    """The buckets of all limits: in the ledger's memory, or in a store that several clusters share."""

    @property
    def clusters(self) -> int:
        """The number of clusters that share them."""
        ...

    def book(self, report: Report[Statement, Grants]) -> None:
        """Takes over what a report says, once for each number; a store does so in `exchange`."""
        ...

    async def exchange(self, report: Report[Statement, Grants], parts: Mapping[LimitId, int]) -> dict[LimitId, Grant]:
        """Gives what a report needs, given how many replicas spend of each limit.

        Raises:
            SharedStateError: The store can't be reached.
        """
        ...

    async def spending(self, own: Mapping[str, float], month: str) -> Mapping[str, float]:
        """Returns what all clusters have spent in a month, by what this one has."""
        ...


@dataclass(slots=True)
class _Member:
    """A replica that spends of one rate.

    Attributes:
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
        them: the replica may have either share. Replicas that have not met this limit would begin with half of an equal
        part.
        """
        self._members = {name: each for name, each in self._members.items() if now_s - each.at_s <= FORGET_S}
        if replica not in self._members:
            self.book(replica, holding, now_s)
        weights = {name: max(each.demand_per_s, _SMALLEST_WEIGHT) for name, each in self._members.items()}
        newcomers = max(0, replicas - len(weights))
        rate_per_s *= 1 - newcomers / (2 * (newcomers + len(weights)))
        others = sum(each.share for name, each in self._members.items() if name != replica)
        share = max(0.0, min(rate_per_s * weights[replica] / sum(weights.values()), rate_per_s - others))
        self._members[replica].share = max(share, self._members[replica].share)
        return share

    def is_idle(self, now_s: float) -> bool:
        """Returns True if no replica has reported."""
        return all(now_s - each.at_s > FORGET_S for each in self._members.values())


class Ledger:
    """Gives out in advance what replicas spend. Without a store that several clusters share, the limits are its own."""

    def __init__(
        self,
        book: UsageBook,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
        store: Buckets | None = None,
    ) -> None:
        self._usage = book
        self._clock = clock
        self._calendar = calendar
        self._buckets = OwnBuckets(clock) if store is None else store
        self._shares: dict[LimitId, Shares] = {}
        self._heard_s: dict[str, float] = {}
        self._is_away = False
        self._settled_s = clock() + settle_s
        # What a store gives needs no time to settle, only shares do.
        settle_s = settle_s if store is None else 0.0
        self._register: Register[Statement, Grants] = Register(self._book, self._answer, None, settle_s, clock)

    async def take(self, report: Report[Statement, Grants]) -> Acknowledgement[Grants] | Pending:
        """Takes a replica's report. While the store is away it is not answered, so that replicas spend their shares."""
        try:
            answer = await self._register.take(report)
        except SharedStateError as error:
            if not self._is_away:
                log.warning("%s Until it does, replicas spend their last share of each limit.", error)
            self._is_away = True
            return Pending()
        if self._is_away and isinstance(answer, Acknowledgement):
            log.warning("the store of limits is back")
            self._is_away = False
        return answer

    def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns sums of this cluster's usage; see `UsageBook.usage`."""
        return self._usage.usage(by, since, until)

    def _book(self, report: Report[Statement, Grants]) -> None:
        now_s, statement = self._clock(), report.content
        self._usage.add(report.replica, report.number, statement.usage, statement.spent, self._calendar())
        self._heard_s[report.replica] = now_s
        self._heard_s = {name: at_s for name, at_s in self._heard_s.items() if now_s - at_s <= FORGET_S}
        self._buckets.book(report)
        for id, holding in statement.holdings.items():
            if id.kind != "concurrency":
                self._shares.setdefault(id, Shares()).book(report.replica, holding, now_s)

    async def _answer(self, report: Report[Statement, Grants]) -> Grants:
        statement, month = report.content, month_of(self._calendar())
        parts = {id: self._shares[id].busy for id in statement.holdings if id in self._shares}
        grants = await self._buckets.exchange(report, parts)
        spent: Mapping[str, float] = self._usage.spending(statement.quotas, month)
        if spent:
            spent = await self._buckets.spending(spent, month)
        now_s = self._clock()
        for id, holding in statement.holdings.items():
            if id.kind != "concurrency":
                share = self._share(id, report.replica, holding, now_s)
                grants[id] = grants[id]._replace(share=share)
        self._shares = {id: shares for id, shares in self._shares.items() if not shares.is_idle(now_s)}
        return Grants(grants, month, spent)

    def _share(self, id: LimitId, replica: str, holding: Holding, now_s: float) -> float:
        rate_per_s = holding.terms.rate_per_s / self._buckets.clusters
        shares = self._shares.setdefault(id, Shares())
        share = shares.grant(replica, holding, rate_per_s, len(self._heard_s), now_s)
        return share if now_s >= self._settled_s else min(share, holding.share)
