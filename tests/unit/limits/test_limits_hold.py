"""Limits hold over replicas, lost and doubled messages, and deaths; in virtual time."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serve.limits.account import RateAccount, SeatAccount
from serve.limits.book import UsageBook
from serve.limits.holdings import Holdings
from serve.limits.ledger import FORGET_S, Ledger
from serve.limits.messages import Meter, Terms
from serve.limits.reservation import Line, Reservation, amount_of, reserve
from serve.limits.slice import RateSlice, SeatSlice

RATE = Terms(100.0, 3000.0)
SEATS = Terms(0.0, 6.0)
TOKENS, REQUESTS = Meter("tenant:a", "tokens"), Meter("tenant:a", "concurrency")
REPLICAS = 3
AMOUNTS = st.floats(1.0, RATE.capacity)
SLACK = 1e-6
Kind = TypeVar("Kind", RateSlice, SeatSlice)


@dataclass
class Replica:
    holdings: Holdings
    running: list[tuple[Reservation, float]] = field(default_factory=list)


class System(RuleBasedStateMachine):
    """Replicas and a ledger; messages get lost, come twice, and either side dies."""

    deaths_allowed = True
    most_used = 1.0  # of what is reserved

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.begun_s = self.now_s
        self.spent = 0.0
        self.names = 0
        self.ledger_deaths = 0
        self.died_owing = 0.0
        self.book = UsageBook()
        self.ledger: Ledger | None = None
        self.replicas: list[Replica] = []

    @initialize()
    def start(self) -> None:
        self.ledger = self._new_ledger(0.0)
        self.replicas = [self._new_replica() for _ in range(REPLICAS)]
        for number in range(REPLICAS):
            self._sync(number, arrives=True, answered=True)

    @rule(by=st.floats(0.01, 1.5))
    def time_passes(self, by: float) -> None:
        self.now_s += by

    @rule(number=st.integers(0, REPLICAS - 1), arrives=st.booleans(), answered=st.booleans())
    def a_replica_reports(self, number: int, arrives: bool, answered: bool) -> None:
        self._sync(number, arrives, answered)

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_report_comes_twice(self, number: int) -> None:
        self._sync(number, arrives=True, answered=False)
        self._sync(number, arrives=True, answered=True)

    @rule()
    def everybody_reports(self) -> None:
        for number in range(REPLICAS):
            self._sync(number, arrives=True, answered=True)

    @rule(number=st.integers(0, REPLICAS - 1), cost=AMOUNTS, answered=st.booleans())
    def a_request_comes(self, number: int, cost: float, answered: bool) -> None:
        replica = self.replicas[number]
        lines = self._lines(replica)
        if replica.holdings.alone:
            for line in lines:
                line.held.draw(self.now_s)
        found = reserve(lines, cost, self.now_s)
        if found is None and not replica.holdings.alone:
            self._lease(replica, lines, cost, answered)
            found = reserve(lines, cost, self.now_s)
        if found is not None:
            self.spent += cost
            replica.running.append((found, cost))

    @rule(number=st.integers(0, REPLICAS - 1), part=st.floats(0, 1))
    def a_request_ends(self, number: int, part: float) -> None:
        replica = self.replicas[number]
        if replica.running:
            reservation, cost = replica.running.pop(0)
            part *= self.most_used
            assert reservation.settle(cost * part) == cost * part
            assert reservation.settle(cost) is None, "settled twice"
            self.spent -= cost * (1 - part)

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_replica_dies(self, number: int) -> None:
        if self.deaths_allowed:
            for held in _slices(self.replicas[number], RateSlice):
                self.died_owing += held._drawn + max(0.0, -held.held)
            report = self.replicas[number].holdings._unconfirmed
            self.died_owing += sum(each.drawn for each in report.holdings.values()) if report else 0.0
            self.replicas[number] = self._new_replica()

    @rule(number=st.integers(0, REPLICAS - 1), arrives=st.booleans())
    def a_replica_leaves_and_another_joins(self, number: int, arrives: bool) -> None:
        """It has ended its requests, and tells all it knows, unless its last report is lost."""
        replica = self.replicas[number]
        while replica.running:
            self.a_request_ends(number, 1.0)
        self._sync(number, arrives=arrives, answered=True)
        if not replica.holdings.alone:
            self._sync(number, arrives=True, answered=True, last=True)
            assert all(held.held <= SLACK and not held._drawn for held in _slices(replica, RateSlice)), "not given back"
            assert not any(held.held for held in _slices(replica, SeatSlice))
            self.replicas[number] = self._new_replica()
            self._sync(number, arrives=True, answered=True)
        else:
            self.a_replica_dies(number)

    @rule()
    def the_ledger_dies(self) -> None:
        if self.ledger is not None and self.deaths_allowed:
            self.ledger = None
            self.ledger_deaths += 1

    @rule()
    def the_ledger_is_back(self) -> None:
        if self.ledger is None:
            self.ledger = self._new_ledger(2.5)

    @invariant()
    def no_more_is_spent_than_flowed_in(self) -> None:
        """But for what replicas on their own drew or owe, which the ledger learns later."""
        rates = [held for replica in self.replicas for held in _slices(replica, RateSlice)]
        drawn = sum(held._drawn + max(0.0, -held.held) for held in rates)
        reports = [replica.holdings._unconfirmed for replica in self.replicas]
        unsent = sum(holding.drawn for report in reports if report for holding in report.holdings.values())
        # The level of a bucket at its ledger's death is known to none, if those who were told of it died as well.
        buckets = RATE.capacity * (1 + self.ledger_deaths)
        flowed = RATE.rate_per_s * (self.now_s - self.begun_s)
        assert self.spent <= flowed + buckets + drawn + unsent + self._debt() + self.died_owing + SLACK

    @invariant()
    def shares_are_never_above_the_limit(self) -> None:
        for account in self.ledger.accounts.values() if self.ledger else ():
            if isinstance(account, RateAccount):
                assert account.shares <= account.terms.rate_per_s + SLACK

    @invariant()
    def no_seat_is_free_below_nothing(self) -> None:
        for replica in self.replicas:
            for held in _slices(replica, SeatSlice):
                assert held.held >= -SLACK
                assert held.in_use == len(replica.running)

    def _debt(self) -> float:
        account = self.ledger.accounts.get(TOKENS) if self.ledger else None
        return max(0.0, -account.level) if isinstance(account, RateAccount) else 0.0

    def _sync(self, number: int, arrives: bool, answered: bool, last: bool = False) -> None:
        holdings = self.replicas[number].holdings
        self._lines(self.replicas[number])
        report = holdings.unconfirmed(self.now_s) or holdings.report(self.now_s, {}, last=last)
        if not arrives or self.ledger is None:
            holdings.lost(self.now_s)
            return
        reply = self.ledger.sync(report)
        if answered:
            holdings.answered(reply, self.now_s)
        else:
            holdings.lost(self.now_s)

    def _lease(self, replica: Replica, lines: list[Line], cost: float, answered: bool) -> None:
        short = [line.held for line in lines if not line.held.affords(amount_of(line.held, cost))]
        asks = {held.meter: held.ask(amount_of(held, cost)) for held in short}
        if self.ledger is None:
            replica.holdings.lost(self.now_s)
            return
        reply = self.ledger.lease(replica.holdings.replica, asks)
        if answered:
            replica.holdings.leased(reply, asks, self.now_s)
        else:
            replica.holdings.lost(self.now_s)

    def _lines(self, replica: Replica) -> list[Line]:
        meters = ((TOKENS, RATE), (REQUESTS, SEATS))
        return [Line(replica.holdings.slice(meter, terms, self.now_s), False) for meter, terms in meters]

    def _new_replica(self) -> Replica:
        self.names += 1
        return Replica(Holdings(f"r{self.names}", REPLICAS, self.now_s))

    def _new_ledger(self, settle_s: float) -> Ledger:
        return Ledger(self.book, settle_s, lambda: self.now_s, lambda: datetime(2026, 11, 22, tzinfo=UTC))


System.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSystem = System.TestCase


class Undying(System):
    """The same without deaths, and nobody is silent for so long that it passes for dead: here all bounds are exact."""

    deaths_allowed = False
    most_used = 3.0

    @rule(by=st.floats(0.01, 1.5))
    def time_passes(self, by: float) -> None:
        self.now_s += by
        for number, replica in enumerate(self.replicas):
            member = self.ledger.members[replica.holdings.replica] if self.ledger else None
            if member is not None and self.now_s - member.at_s > FORGET_S - 1.6:
                self._sync(number, arrives=True, answered=True)

    @invariant()
    def no_more_requests_run_than_there_are_seats(self) -> None:
        seats = [held for replica in self.replicas for held in _slices(replica, SeatSlice)]
        assert sum(held.held + held.in_use for held in seats) <= SEATS.capacity

    @invariant()
    def the_ledger_knows_of_every_seat(self) -> None:
        if self.ledger is None or REQUESTS not in self.ledger.accounts:
            return
        account = self.ledger.accounts[REQUESTS]
        assert isinstance(account, SeatAccount)
        assert account.out >= sum(
            held.held + held.in_use for replica in self.replicas for held in _slices(replica, SeatSlice)
        )


Undying.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestUndying = Undying.TestCase


def _slices(replica: Replica, kind: type[Kind]) -> list[Kind]:
    return [held for held in replica.holdings._slices.values() if isinstance(held, kind)]


def test_after_an_outage_the_new_ledger_counts_what_flowed_in_meanwhile() -> None:
    """What was drawn at shares that add up to the rate leaves no debt, however long the outage was."""
    time = [0.0]
    holdings = Holdings("r", 1, 0.0)
    ledger = Ledger(UsageBook(), 0.0, lambda: time[0])
    for second in range(80):
        time[0] = now_s = float(second)
        if second == 70:
            ledger = Ledger(UsageBook(), 2.5, lambda: time[0])
        held = holdings.slice(TOKENS, RATE, now_s)
        while True:
            again = holdings.unconfirmed(now_s)
            report = again or holdings.report(now_s, {})
            if 5 <= second < 70:
                holdings.lost(now_s)
                break
            holdings.answered(ledger.sync(report), now_s)
            if again is None:
                break
        if second < 70:
            if not second:  # nobody gets anything in advance before it has spent something
                asks = {TOKENS: held.ask(10.0)}
                holdings.leased(ledger.lease("r", asks), asks, now_s)
            assert held.take(max(held.held, 0.0), now_s)
    account = ledger.accounts[TOKENS]
    assert isinstance(account, RateAccount)
    assert 0 <= account.level <= RATE.capacity


def test_the_seats_of_a_replica_that_was_killed_are_back_within_four_seconds() -> None:
    """However recently it was heard from: here it dies right after a report, with all its requests open."""
    now = [0.0]
    ledger = Ledger(UsageBook(), 0.0, lambda: now[0])
    killed, other = Holdings("killed", 2, 0.0), Holdings("other", 2, 0.0)
    seats = {holdings: holdings.slice(REQUESTS, SEATS, 0.0) for holdings in (killed, other)}

    def reports(holdings: Holdings) -> None:
        holdings.answered(ledger.sync(holdings.report(now[0], {})), now[0])

    def admits(holdings: Holdings, requests: int) -> bool:
        line = Line(seats[holdings], False)
        asks = {REQUESTS: line.held.ask(requests)}
        holdings.leased(ledger.lease(holdings.replica, asks), asks, now[0])
        return all(reserve([line], 1.0, now[0]) is not None for _ in range(requests))

    for holdings in (killed, other):
        reports(holdings)
    assert admits(killed, int(SEATS.capacity))
    reports(killed)
    for second in (1.0, 2.0, 3.0):
        now[0] = second
        reports(other)
        assert not admits(other, 1), "they may still run"
    now[0] = 4.01
    assert admits(other, int(SEATS.capacity))
