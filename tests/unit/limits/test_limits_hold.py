"""Limits hold over replicas, lost and doubled messages, and deaths; in virtual time."""

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.clock import run

from serve.errors import SharedStateError
from serve.limits.book import UsageBook
from serve.limits.bucket import FORGET_S
from serve.limits.ledger import Ledger
from serve.limits.ledger_messages import Grant, Grants, LimitId, LimitTerms, Statement
from serve.limits.quota import month_of
from serve.limits.slice import Holdings, RateSlice, Reservation, SeatSlice, Slice, reserve
from serve.limits.usage import UsageKey, UsageSums
from serve.shared.report import SETTLE_S, Acknowledgement, Pending, Report, Reporter

RATE = LimitTerms(100.0, 3000.0)
SEATS = LimitTerms(0.0, 6.0)
TOKENS, REQUESTS = LimitId("tenant:a", "tokens"), LimitId("tenant:a", "concurrency")
KEY = UsageKey("a", "k", "m", "p", False)
REPLICAS = 3
AMOUNTS = st.floats(1.0, RATE.capacity)
FATES = st.sampled_from(["arrives", "request is lost", "answer is lost", "arrives twice"])
SLACK = 1e-6
MONTH = datetime(2026, 11, 22, tzinfo=UTC)
log = logging.getLogger("test")


class Site:
    """A ledger, and the way to it."""

    def __init__(self, settle_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.fate = "arrives"
        self.book = UsageBook()
        self.ledger: Ledger | None = self.new_ledger(settle_s)
        self.sent: list[Report[Statement, Grants]] = []

    def new_ledger(self, settle_s: float) -> Ledger:
        return Ledger(self.book, settle_s, lambda: self.now_s, lambda: MONTH)

    async def send(self, report: Report[Statement, Grants]) -> Acknowledgement[Grants] | Pending:
        if self.ledger is None or self.fate == "request is lost":
            raise SharedStateError("The ledger is away.")
        self.sent.append(report)
        if self.fate == "arrives twice":
            await self.ledger.take(report)
        reply = await self.ledger.take(report)
        if self.fate == "answer is lost":
            raise SharedStateError("The ledger is away.")
        return reply


class Replica:
    """One gateway replica: all that `Accounts` has but its tasks."""

    def __init__(self, site: Site, replicas: int = REPLICAS) -> None:
        self._site = site
        self.holdings = Holdings(replicas)
        self.running: list[tuple[Reservation, float]] = []
        self.usage = 0
        self.whole = self.last = False
        self.told_all_s = site.now_s
        self.reporter = Reporter(
            site.send, self._collect, self._adopt, "the ledger", "Meanwhile, nothing.", log, lambda: site.now_s
        )

    def _collect(self) -> Statement:
        now_s = self._site.now_s
        holdings = self.holdings.all(now_s, last=self.last) if self.whole else self.holdings.needed(now_s)
        usage, self.usage = self.usage, 0
        return Statement(holdings, {KEY: UsageSums(usage)} if usage else {}, {"s": usage} if usage else {})

    def _adopt(self, state: Grants) -> None:
        self.holdings.adopt(state.grants, self._site.now_s)

    def sync(self, fate: str = "arrives", *, whole: bool = True, last: bool = False) -> bool:
        self._site.fate, self.whole, self.last = fate, whole, last
        for id, terms in ((TOKENS, RATE), (REQUESTS, SEATS)):
            self.slice(id, terms)
        answered = run(self.reporter.sync())
        self._site.fate = "arrives"
        if not answered:
            self.holdings.lost(self._site.now_s)
        elif whole:
            self.told_all_s = self._site.now_s
        return answered

    def slice(self, id: LimitId, terms: LimitTerms) -> Slice:
        return self.holdings.slice(id, terms, self._site.now_s, alone=self.reporter.alone)

    @property
    def tokens(self) -> RateSlice:
        held = self.slice(TOKENS, RATE)
        assert isinstance(held, RateSlice)
        return held

    @property
    def seats(self) -> SeatSlice:
        held = self.slice(REQUESTS, SEATS)
        assert isinstance(held, SeatSlice)
        return held

    def ask(self, cost: float, fate: str = "arrives") -> bool:
        """A request comes; returns True if it is admitted."""
        found = self._reserve(cost)
        if found is None and not self.reporter.alone:
            for held in (self.tokens, self.seats):
                if not held.affords(held.amount(cost)):
                    held.needs.append(held.amount(cost))
            self.sync(fate, whole=False)
            found = self._reserve(cost)
        if found is not None:
            self.running.append((found, cost))
            self.usage += 1
        return found is not None

    def _reserve(self, cost: float) -> Reservation | None:
        slices = (self.tokens, self.seats)
        if self.reporter.alone:
            for held in slices:
                held.draw(self._site.now_s)
        return reserve(slices, cost, self._site.now_s)


class System(RuleBasedStateMachine):
    """Replicas and a ledger; messages get lost and come twice, and the ledger dies. The replicas live.

    Requests use up to three times what they have reserved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.site = Site()
        self.begun_s = self.site.now_s
        self.spent = 0.0
        self.admitted = 0

    @initialize()
    def start(self) -> None:
        self.replicas = [Replica(self.site) for _ in range(REPLICAS)]
        for replica in self.replicas:
            assert replica.sync()
        for replica in self.replicas:
            assert replica.sync()

    @rule(by=st.floats(0.01, 1.5))
    def time_passes(self, by: float) -> None:
        """Nobody passes for dead: all that it holds is told in time, beside reports on what requests wait for."""
        self.site.now_s += by
        for replica in self.replicas:
            if self.site.now_s - replica.told_all_s > FORGET_S - 1.6:
                replica.sync()

    @rule(number=st.integers(0, REPLICAS - 1), fate=FATES)
    def a_replica_reports(self, number: int, fate: str) -> None:
        self.replicas[number].sync(fate)

    @rule(number=st.integers(0, REPLICAS - 1), cost=AMOUNTS, fate=FATES)
    def a_request_comes(self, number: int, cost: float, fate: str) -> None:
        if self.replicas[number].ask(cost, fate):
            self.spent += cost
            self.admitted += 1

    @rule(number=st.integers(0, REPLICAS - 1), part=st.floats(0, 3.0))
    def a_request_ends(self, number: int, part: float) -> None:
        if self.replicas[number].running:
            reservation, cost = self.replicas[number].running.pop(0)
            reservation.settle(cost * part)
            reservation.settle(cost)  # the second time does nothing
            self.spent += cost * (part - 1)

    @rule(number=st.integers(0, 30))
    def an_old_report_comes_late(self, number: int) -> None:
        if self.site.sent and self.site.ledger is not None:
            run(self.site.ledger.take(self.site.sent[-1 - number % len(self.site.sent)]))  # type: ignore[arg-type]

    @rule()
    def the_ledger_dies(self) -> None:
        self.site.ledger = None

    @precondition(lambda self: self.site.ledger is None)
    @rule()
    def another_ledger_begins_and_settles(self) -> None:
        self.site.sent.clear()
        self.site.ledger = self.site.new_ledger(SETTLE_S)
        for replica in self.replicas:
            replica.sync()
        self.site.now_s += SETTLE_S
        for replica in self.replicas:
            replica.sync()

    @invariant()
    def shares_are_never_above_the_rate(self) -> None:
        """Whatever answers got lost: the ledger could die now, and then replicas spend what they have for a share."""
        assert sum(replica.tokens.share for replica in self.replicas) <= RATE.rate_per_s + SLACK

    @invariant()
    def no_more_requests_run_than_there_are_seats(self) -> None:
        assert sum(replica.seats.held + replica.seats.in_use for replica in self.replicas) <= SEATS.capacity
        for replica in self.replicas:
            assert replica.seats.held >= 0
            assert replica.seats.in_use == len(replica.running)

    def teardown(self) -> None:
        """When the ledger has all reports: what was spent, is held or is left has flowed in."""
        if self.site.ledger is None:
            self.another_ledger_begins_and_settles()
        for replica in self.replicas * 2:
            assert replica.sync()
        level = self.replicas[-1].tokens.level
        assert level is not None
        held = sum(replica.tokens.held for replica in self.replicas)
        flowed = RATE.capacity + RATE.rate_per_s * (self.site.now_s - self.begun_s)
        assert self.spent + held + level <= flowed + SLACK * max(1.0, self.spent)
        requests = sum(row["requests"] for row in self.site.book.usage([]))
        assert requests == self.admitted, "usage is booked once, whatever got lost"
        assert self.site.book.spending(["s"], month_of(MONTH))["s"] == self.admitted


System.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSystem = System.TestCase


def site(replicas: int = 2) -> tuple[Site, list[Replica]]:
    found = Site()
    members = [Replica(found, replicas) for _ in range(replicas)]
    for member in members * 2:
        assert member.sync()
    return found, members


def spend(replica: Replica, cost: float) -> bool:
    """A request that uses all that it reserves, and frees its seat at once."""
    admitted = replica.ask(cost)
    if admitted:
        reservation, _ = replica.running.pop()
        reservation.settle(cost)
    return admitted


def test_a_share_that_got_lost_is_not_given_to_another_replica() -> None:
    """The house's proof of the bound: an answer that lowered a share counts once its replica is known to have it."""
    now, (first, second) = site()
    assert spend(first, 300)
    now.now_s += 1
    assert first.sync()
    assert first.tokens.share > 0.9 * RATE.rate_per_s
    assert spend(second, 300)
    now.now_s += 1
    assert second.sync()
    assert not first.sync("answer is lost")
    for _ in range(3):
        now.now_s += 0.5
        assert spend(second, 100)
        assert second.sync()
        assert first.tokens.share + second.tokens.share <= RATE.rate_per_s + SLACK
    before = second.tokens.share
    assert first.sync()
    assert second.sync()
    assert second.tokens.share > before + 10, "in the end it is"


def test_a_share_is_kept_for_a_replica_that_has_not_met_the_limit_yet() -> None:
    """Its first request may come when the ledger is gone; then it has half of an equal part."""
    now = Site()
    first, second = Replica(now, 2), Replica(now, 2)
    for _ in range(3):
        assert run(second.reporter.sync())
        assert first.sync()
        assert spend(first, 100)
        now.now_s += 1
    now.ledger = None
    assert not run(second.reporter.sync())
    assert second.tokens.share == RATE.rate_per_s / 4
    assert first.tokens.share + second.tokens.share <= RATE.rate_per_s + SLACK


def test_the_seats_of_an_answer_that_got_lost_are_there_for_others_and_never_twice() -> None:
    now, (first, second) = site()
    assert not first.ask(1.0, "answer is lost")
    assert first.seats.held + first.seats.in_use == 0
    running = [second.ask(1.0) for _ in range(8)]
    assert 3 <= sum(running) < SEATS.capacity, "the lost ones are the first replica's until it says otherwise"
    assert first.sync()
    assert first.seats.held + first.seats.in_use + sum(running) <= SEATS.capacity
    now.now_s += 3
    for replica in (first, second):
        assert replica.sync()
    assert sum(each.seats.held + each.seats.in_use for each in (first, second)) <= SEATS.capacity


def test_what_is_not_used_goes_back_and_is_there_for_others() -> None:
    now, (first, second) = site()
    assert first.ask(3000)
    first.running.pop()[0].settle(0.0)  # it used nothing of it
    assert first.sync()
    assert first.tokens.held == 3000, "the next request may come at once"
    now.now_s += 2.5
    assert first.sync()
    assert first.tokens.held == 0
    assert spend(second, 3000)
    assert not spend(second, 500)


def test_a_replica_on_its_own_spends_its_share_and_the_new_ledger_knows_of_it() -> None:
    """What was drawn at shares that add up to the rate leaves no debt, however long the outage was."""
    now, (only,) = site(1)
    assert spend(only, 3000)
    now.now_s += 1
    assert only.sync()
    now.ledger, spent = None, 0.0
    for _ in range(600):
        now.now_s += 0.1
        if round(now.now_s * 10) % 10 == 0:
            only.sync()
        spent += 10.0 * spend(only, 10.0)
    assert 0.9 * 60 * RATE.rate_per_s <= spent <= 61 * RATE.rate_per_s
    now.ledger = now.new_ledger(SETTLE_S)
    only.sync()
    now.now_s += SETTLE_S
    assert only.sync()
    level = only.tokens.level
    assert level is not None
    assert -0.01 * RATE.capacity <= level <= 3.5 * RATE.rate_per_s


class Store:
    """What two clusters share; it has nothing to give just now."""

    clusters = 2

    def book(self, report: Report[Statement, Grants]) -> None:
        pass

    async def exchange(self, report: Report[Statement, Grants], parts: Mapping[LimitId, int]) -> dict[LimitId, Grant]:
        return {id: Grant(0.0, 0.0) for id in report.content.holdings}

    async def spending(self, own: Mapping[str, float], at: datetime) -> Mapping[str, float]:
        return own


def test_the_shares_of_a_cluster_are_its_part_of_the_rate_also_when_its_ledger_has_just_begun() -> None:
    now = Site()
    members = [Replica(now, 2) for _ in range(2)]
    for ledger in range(3):
        now.ledger = Ledger(now.book, SETTLE_S, lambda: now.now_s, lambda: MONTH, Store())
        for turn in range(12):
            now.now_s += 0.5
            assert members[turn % 2].sync()
            if ledger or turn > 1:  # both have met it
                assert sum(member.tokens.share for member in members) <= RATE.rate_per_s / Store.clusters + SLACK
        assert sum(member.tokens.share for member in members) >= 0.9 * RATE.rate_per_s / Store.clusters


def test_what_lay_in_a_bucket_is_forgotten_with_its_ledger() -> None:
    """A replica that died with it may have spent all of that, and nobody else knows."""
    now, (died, lives) = site()
    now.now_s += 1
    assert lives.sync()
    assert spend(died, 3000)
    now.ledger = now.new_ledger(SETTLE_S)
    lives.sync()
    now.now_s += SETTLE_S
    assert lives.sync()
    assert not spend(lives, 500)


def test_the_seats_of_a_replica_that_was_killed_are_back_within_four_seconds() -> None:
    """However recently it was heard from: here it dies right after a report, with all its requests open."""
    now, (killed, other) = site()
    assert all(killed.ask(1.0) for _ in range(6))
    assert killed.sync()
    for _ in range(3):
        now.now_s += 1
        assert other.sync()
        assert not other.ask(1.0), "they may still run"
    now.now_s += 1.01
    assert all(other.ask(1.0) for _ in range(6))


def test_a_replica_that_leaves_gives_everything_back() -> None:
    now, (leaves, stays) = site()
    assert spend(leaves, 100)
    now.now_s += 1
    assert leaves.sync()
    assert leaves.sync(last=True)
    assert (leaves.tokens.held, leaves.seats.held) == (0.0, 0.0)
    assert stays.ask(2900)


@pytest.mark.parametrize("fates", [["answer is lost"] * 3, ["request is lost", "arrives twice"], []])
def test_usage_is_booked_once_by_whichever_ledger_has_the_file(fates: list[str]) -> None:
    now, (only,) = site(1)
    assert spend(only, 10.0)
    for fate in fates:
        only.sync(fate)
    now.ledger = now.new_ledger(0.0)
    assert only.sync()
    assert Counter({row["tenant"]: row["requests"] for row in now.book.usage(["tenant"])}) == {"a": 1}
