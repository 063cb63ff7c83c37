"""The state of the one ledger that all gateway replicas share: accounts by meter, and who holds what. No I/O."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from serve.limits.account import AllSeats, RateAccount, SeatAccount
from serve.limits.bucket import Bucket
from serve.limits.messages import Ask, Grant, Holding, Meter, Reply, Report, Spending, Terms, UsageKey, UsageSums

FORGET_S = 4.0  # three reports missed, and a little for the network
SETTLE_S = 2.5  # in which every replica that lives reports at least twice
_MAX_NUMBERS = 4096  # of replicas whose last report's number is remembered
_IDLE_S = 600.0  # after which an account that nobody asks for is as good as new, unless it owes something


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


Account = RateAccount | SeatAccount


def own_account(meter: Meter, terms: Terms, now_s: float) -> Account:
    """Returns a new account of all that a limit has."""
    if meter.kind == "concurrency":
        return SeatAccount(terms, AllSeats())
    return RateAccount(Bucket(*terms, terms.capacity, now_s))


@dataclass
class Member:
    """A replica that reports.

    Attributes:
        at_s: Of its last message, monotonic.
        reply: To its last report.
        issued: Serial of the last answer.
        meters: That it holds something of.
    """

    at_s: float
    reply: Reply | None = None
    issued: int = 0
    meters: set[Meter] = field(default_factory=set)


class Ledger:
    """Gives out in advance what replicas spend.

    Args:
        book: Keeps usage.
        settle_s: Seconds from the start without grants, for what replicas were given by an earlier ledger.
        clock: Monotonic seconds.
        calendar: The time of day.
        opened: Returns the account of a meter that is met for the first time.

    Attributes:
        members: The replicas that report, by name.
        accounts: By meter.
    """

    def __init__(
        self,
        book: Book,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
        opened: Callable[[Meter, Terms, float], Account] = own_account,
    ) -> None:
        self.members: dict[str, Member] = {}
        self.accounts: dict[Meter, Account] = {}
        self._book = book
        self._opened = opened
        self._clock = clock
        self._calendar = calendar
        self._settled_s = clock() + settle_s
        self._used_s: dict[Meter, float] = {}
        self._numbers: dict[str, int] = {}

    def sync(self, report: Report) -> Reply:
        """Takes a report; one that was taken before gets the same answer once more."""
        now_s = self._clock()
        self._forget(now_s)
        member = self.members.setdefault(report.replica, Member(now_s))
        member.at_s = now_s
        new = report.number > self._numbers.pop(report.replica, 0)
        self._remember(report)
        if member.reply is not None and not new:
            return member.reply
        at = self._calendar()
        self._book.add(report.replica, report.number, report.usage, report.spent, at)
        settling = now_s < self._settled_s
        grants = {
            meter: self._booked(meter, holding if new else holding.again(), report, member, now_s)
            for meter, holding in report.holdings.items()
        }
        for meter in member.meters - report.holdings.keys():  # it holds nothing of these any more
            self.accounts[meter].forget(report.replica)
            member.meters.discard(meter)
        member.issued += 1
        member.reply = Reply(member.issued, settling, grants, self._book.spending(report.quotas, at))
        return member.reply

    def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        """Gives what is needed at once, unless it has just begun."""
        now_s = self._clock()
        self._forget(now_s)
        if now_s < self._settled_s:
            return Reply(0, settling=True)
        member = self.members.setdefault(replica, Member(now_s))
        grants: dict[Meter, Grant] = {}
        for meter, ask in asks.items():
            account = self.accounts.get(meter)
            if account is None:
                account = self.accounts[meter] = self._opened(meter, ask.terms, now_s)
            member.meters.add(meter)
            self._used_s[meter] = now_s
            grants[meter] = account.lease(replica, ask, now_s)
        member.issued += 1
        return Reply(member.issued, grants=grants)

    def _booked(self, meter: Meter, holding: Holding, report: Report, member: Member, now_s: float) -> Grant:
        settling = now_s < self._settled_s
        account = self.accounts.get(meter)
        if account is None:
            account = self.accounts[meter] = self._opened(meter, holding.terms, now_s)
            holding = holding._replace(returned=0.0)  # to another ledger's account
            account.begin(holding, report.alone_s, now_s)
        elif settling and meter not in member.meters:
            holding = holding._replace(returned=0.0)
            account.begin(holding, report.alone_s, now_s)
        member.meters.add(meter)
        self._used_s[meter] = now_s
        return account.report(
            report.replica,
            holding,
            now_s,
            confirmed=report.seen == member.issued,
            grants=not settling,
            strangers=len(self.members) - account.known,
        )

    def _remember(self, report: Report) -> None:
        """Remembers a report's number, for longer than the replica itself."""
        self._numbers[report.replica] = report.number
        if len(self._numbers) > _MAX_NUMBERS:
            del self._numbers[next(iter(self._numbers))]

    def _forget(self, now_s: float) -> None:
        """Forgets replicas that are silent, and accounts that nobody has asked for in a long time."""
        for replica in [name for name, member in self.members.items() if now_s - member.at_s > FORGET_S]:
            for meter in self.members.pop(replica).meters:
                self.accounts[meter].forget(replica)
        idle = [meter for meter, used_s in self._used_s.items() if now_s - used_s > _IDLE_S]
        for meter in idle:
            if not self.accounts[meter].owes(now_s):
                del self.accounts[meter], self._used_s[meter]
