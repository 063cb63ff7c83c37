"""Limits hold over clusters, lost and doubled messages, deaths and a store that forgets; in virtual time.

The store is a real server that runs the real script; only what it takes for the time is a key that the test sets.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.limits_store import VIRTUAL, StoreServer, needs_server

from serve.limits.book import UsageBook
from serve.limits.holdings import Holdings
from serve.limits.ledger import Ledger
from serve.limits.messages import Ask, Meter, Terms
from serve.limits.reservation import Line, Reservation, amount_of, reserve
from serve.limits.store.advances import Advances
from serve.limits.store.client import RedisStore
from serve.limits.store.supply import prepaid_account

pytestmark = needs_server
RATE = Terms(100.0, 3000.0)
SEATS = Terms(0.0, 8.0)
TOKENS, REQUESTS = Meter("tenant:a", "tokens"), Meter("tenant:a", "concurrency")
CLUSTERS = 2
AMOUNTS = st.floats(1.0, RATE.capacity)
NUMBERS = st.integers(0, CLUSTERS - 1)
SLACK = 1e-6
BEGUN_S = 1_000_000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, RedisStore]]:
    found = StoreServer(tmp_path_factory.mktemp("store"), persistent=False)
    with asyncio.Runner() as runner:
        runner.run(found.start())
        store = RedisStore(found.config, VIRTUAL)
        try:
            yield runner, store
        finally:
            runner.run(store.close())
            found.stop()


@dataclass
class Cluster:
    """One replica, its ledger and what that holds of the store."""

    advances: Advances
    ledger: Ledger
    replica: Holdings
    running: list[tuple[Reservation, float]] = field(default_factory=list)

    def lines(self, now_s: float) -> list[Line]:
        meters = ((TOKENS, RATE), (REQUESTS, SEATS))
        return [Line(self.replica.slice(meter, terms, now_s), False) for meter, terms in meters]

    def owing(self) -> float:
        """What the store does not know yet: drawn on its own, or spent beyond what was given."""
        held = self.advances._rates.get(TOKENS)
        pending = self.advances.pending.entries.get(TOKENS) if self.advances.pending else None
        told = 0.0 if held is None else held._drawn + max(0.0, -held.held)
        spent = self.replica.slice(TOKENS, RATE, 0.0).held
        return told + max(0.0, -spent) + (max(0.0, pending.owed) if pending else 0.0)

    def debt(self, now_s: float) -> float:
        """What the store is owed, as far as it has told."""
        told = self.advances._told.get(TOKENS)
        return max(0.0, -told.level - RATE.rate_per_s * (now_s - told.at_s)) if told else 0.0


class Clusters(RuleBasedStateMachine):
    """Clusters and a store. Messages and answers get lost."""

    runner: asyncio.Runner
    store: RedisStore

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGUN_S
        self.spent = 0.0
        self.names = 0
        self.died_owing = 0.0
        self.clusters: list[Cluster] = []

    @initialize()
    def start(self) -> None:
        self._command("FLUSHALL")
        self._tell_time()
        self.clusters = [self._new_cluster() for _ in range(CLUSTERS)]
        for _ in range(4):  # a store that begins gives nothing for 2.5 s
            for number in range(CLUSTERS):
                self._report(number, arrives=True, answered=True)
            self.time_passes(1.0)

    @rule(by=st.floats(0.01, 1.0))
    def time_passes(self, by: float) -> None:
        self.now_s += by
        self._tell_time()

    @rule(number=NUMBERS, arrives=st.booleans(), answered=st.booleans())
    def a_cluster_reports(self, number: int, arrives: bool, answered: bool) -> None:
        self._report(number, arrives, answered)

    @rule()
    def everybody_reports(self) -> None:
        for number in range(CLUSTERS):
            self._report(number, arrives=True, answered=True)

    @rule(number=NUMBERS)
    def a_message_comes_twice(self, number: int) -> None:
        self._report(number, arrives=True, answered=False)
        self._report(number, arrives=True, answered=True)

    @rule(number=NUMBERS)
    def a_replica_reports(self, number: int) -> None:
        self._replica_reports(self.clusters[number])

    @rule(number=NUMBERS, cost=AMOUNTS, answered=st.booleans())
    def a_request_comes(self, number: int, cost: float, answered: bool) -> None:
        cluster = self.clusters[number]
        lines = cluster.lines(self.now_s)
        found = reserve(lines, cost, self.now_s)
        if found is None:
            asks = {
                line.held.meter: line.held.ask(amount_of(line.held, cost))
                for line in lines
                if not line.held.affords(amount_of(line.held, cost))
            }
            self._fetch(cluster, asks, answered)
            cluster.replica.leased(cluster.ledger.lease(cluster.replica.replica, asks), asks, self.now_s)
            found = reserve(lines, cost, self.now_s)
        if found is not None:
            self.spent += cost
            cluster.running.append((found, cost))

    @rule(number=NUMBERS, part=st.floats(0, 3))
    def a_request_ends(self, number: int, part: float) -> None:
        """It may have used more than was reserved for it."""
        running = self.clusters[number].running
        if running:
            reservation, cost = running.pop(0)
            reservation.settle(cost * part)
            self.spent -= cost * (1 - part)

    @invariant()
    def no_more_is_spent_than_flowed_in(self) -> None:
        """But for what clusters on their own drew, which the store learns later."""
        flowed = RATE.capacity + RATE.rate_per_s * (self.now_s - BEGUN_S)
        owing = sum(cluster.owing() for cluster in self.clusters) + self._debt()
        assert self.spent <= flowed + owing + self.died_owing + SLACK

    def _debt(self) -> float:
        return max(cluster.debt(self.now_s) for cluster in self.clusters)

    def _report(self, number: int, arrives: bool, answered: bool) -> None:
        cluster = self.clusters[number]
        self._replica_reports(cluster)
        if cluster.advances.pending is None:
            cluster.advances.report({}, self.now_s)
        self._exchange(cluster, arrives, answered)

    def _replica_reports(self, cluster: Cluster) -> None:
        cluster.lines(self.now_s)
        reply = cluster.ledger.sync(cluster.replica.report(self.now_s, {}))
        cluster.replica.answered(reply, self.now_s)

    def _fetch(self, cluster: Cluster, asks: Mapping[Meter, Ask], answered: bool) -> None:
        missing = cluster.advances.short(asks, self.now_s)
        if missing and cluster.advances.pending is None:
            cluster.advances.ask(missing, self.now_s)
            self._exchange(cluster, True, answered)

    def _exchange(self, cluster: Cluster, arrives: bool, answered: bool) -> None:
        message = cluster.advances.pending
        assert message is not None
        if not arrives:
            cluster.advances.lost(self.now_s)
            return
        answer = self.runner.run(self.store.exchange(message))
        if answered:
            cluster.advances.answered(answer, self.now_s)
        else:
            cluster.advances.lost(self.now_s)

    def _new_cluster(self) -> Cluster:
        self.names += 1
        advances = Advances(f"c{self.names}", CLUSTERS)
        ledger = Ledger(
            UsageBook(), 0.0, lambda: self.now_s, lambda: datetime(2026, 11, 22, tzinfo=UTC),
            partial(prepaid_account, advances),
        )  # fmt: skip
        return Cluster(advances, ledger, Holdings(f"r{self.names}", 1, self.now_s))

    def _tell_time(self) -> None:
        self._command("SET", "now", repr(self.now_s))

    def _command(self, *words: str) -> None:
        self.runner.run(self.store._redis.execute_command(*words))


class Living(Clusters):
    """Without deaths, what clusters would draw on their own adds up to the limit."""

    @invariant()
    def nobody_shares_more_than_the_limit(self) -> None:
        shares = [cluster.advances._rates[TOKENS].share for cluster in self.clusters if cluster.advances._rates]
        assert sum(shares) <= RATE.rate_per_s * (1 + 1e-5)


class Together(Living):
    """Nobody is silent for so long that it passes for dead: here no seat is given twice."""

    @rule(by=st.floats(0.01, 1.0))
    def time_passes(self, by: float) -> None:
        super().time_passes(by)
        for number in range(len(self.clusters)):
            self._report(number, arrives=True, answered=True)

    @invariant()
    def no_more_requests_run_than_there_are_seats(self) -> None:
        held = [cluster.advances._seats[REQUESTS] for cluster in self.clusters if cluster.advances._seats]
        assert sum(each.held + each.in_use for each in held) <= SEATS.capacity
        assert sum(len(cluster.running) for cluster in self.clusters) <= SEATS.capacity


class Mortal(Clusters):
    """Clusters die, and the store loses all that it knows."""

    @rule(number=NUMBERS)
    def a_cluster_dies(self, number: int) -> None:
        self.died_owing += self.clusters[number].owing() + self._debt()
        self.clusters[number] = self._new_cluster()

    @rule()
    def the_store_forgets_everything(self) -> None:
        self.died_owing += self._debt()
        self._command("FLUSHALL")
        self._tell_time()


@pytest.mark.parametrize("machine", [Living, Together, Mortal])
def test_limits_hold(machine: type[Clusters], server: tuple[asyncio.Runner, RedisStore]) -> None:
    class Here(machine):  # type: ignore[misc,valid-type]
        runner, store = server

    run_state_machine_as_test(
        Here, settings=settings(max_examples=40, stateful_step_count=30, deadline=None, database=None)
    )
