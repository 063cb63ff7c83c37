"""What replicas admit together stays within the limit when answers of the ledger are lost, late or overtaken.

All that is looked at is what clients see: requests that pass. `Gateway` alone knows the messages.
"""

from collections import deque
from collections.abc import Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from serve.limits.holdings import Holdings
from serve.limits.reservation import Line, Reservation, reserve

from serve.limits.book import UsageBook
from serve.limits.ledger import Ledger
from serve.limits.messages import Ask, Meter, Reply, Terms

RATE, SEATS = Terms(100.0, 3000.0), Terms(0.0, 3.0)
TOKENS, REQUESTS = Meter("tenant:a", "tokens"), Meter("tenant:a", "concurrency")
REPLICAS = 3


class Cluster:
    """A ledger and the time; nobody in it dies, or is silent for so long that it passes for dead."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ledger = Ledger(UsageBook(), 0.0, lambda: self.now_s)


class Gateway:
    """One replica under one limit.

    Args:
        cluster: Where it runs.
        meter: What is limited.
        terms: The limit.
    """

    def __init__(self, name: str, cluster: Cluster, meter: Meter, terms: Terms) -> None:
        self._cluster = cluster
        self._meter = meter
        self._terms = terms
        self._holdings = Holdings(name, REPLICAS, cluster.now_s)
        self._late: deque[tuple[Reply, Mapping[Meter, Ask]]] = deque()
        self.running: list[Reservation] = []
        self._line()
        self.report()

    def report(self, *, answered: bool = True) -> None:
        """Reports as it does each second; an answer that is lost, it asks for again with its next report."""
        report = self._holdings.unconfirmed(self._cluster.now_s) or self._holdings.report(self._cluster.now_s, {})
        reply = self._cluster.ledger.sync(report)
        if answered:
            self._holdings.answered(reply, self._cluster.now_s)
        else:
            self._holdings.lost(self._cluster.now_s)

    def ask(self, amount: float) -> None:
        """Asks for what a request needs; the answer stays on the way until it `arrives`."""
        asks = {self._meter: self._line().held.ask(amount)}
        self._late.append((self._cluster.ledger.lease(self._holdings.replica, asks), asks))

    def arrives(self) -> None:
        """Takes the oldest answer that is on the way."""
        if self._late:
            self._holdings.leased(*self._late.popleft(), self._cluster.now_s)

    def loses_patience(self) -> None:
        """Goes on without the ledger's answer."""
        self._holdings.lost(self._cluster.now_s)

    def admits(self, amount: float) -> bool:
        """Lets a request pass if what is held is enough."""
        line = self._line()
        if self._holdings.alone:
            line.held.draw(self._cluster.now_s)
        found = reserve([line], amount, self._cluster.now_s)
        if found is not None:
            self.running.append(found)
        return found is not None

    def asks_and_admits(self, amount: float) -> bool:
        """The same, and asks the ledger first if that is needed."""
        if not self.admits(amount):
            self.ask(amount)
            self.arrives()
            return self.admits(amount)
        return True

    def ends(self) -> None:
        """Ends its oldest request."""
        if self.running:
            self.running.pop(0).settle(1.0)

    def _line(self) -> Line:
        return Line(self._holdings.slice(self._meter, self._terms, self._cluster.now_s), False)


def spent_alone(cluster: Cluster, gateways: list[Gateway], seconds: int) -> float:
    """Returns what all spend together while nobody reaches the ledger."""
    spent = 0.0
    for gateway in gateways:
        gateway.loses_patience()
    for _ in range(seconds):
        cluster.now_s += 1.0
        for gateway in gateways:
            while gateway.admits(10.0):
                spent += 10.0
    return spent


STEPS = st.lists(st.tuples(st.integers(0, REPLICAS - 1), st.sampled_from(["busy", "idle"]), st.booleans()), max_size=40)


@settings(deadline=None, max_examples=60)
@given(STEPS)
@example([(0, "busy", True)] * 20 + [(1, "busy", True)] * 2 + [(0, "idle", False)] + [(1, "busy", True)] * 3)
def test_replicas_on_their_own_spend_no_more_than_the_rate_whatever_answers_were_lost(
    steps: list[tuple[int, str, bool]],
) -> None:
    """The ledger lowers one replica's share and raises another's; the first may never have heard of it."""
    cluster = Cluster()
    gateways = [Gateway(f"r{number}", cluster, TOKENS, RATE) for number in range(REPLICAS)]
    for gateway in gateways * 2:  # until each was told a share beside all others
        gateway.report()
    for number, how, answered in steps:
        cluster.now_s += 1.0
        if how == "busy":
            gateways[number].asks_and_admits(50.0)
        gateways[number].report(answered=answered)
        for other in gateways[:number] + gateways[number + 1 :]:
            other.report()
    seconds = 1000
    assert spent_alone(cluster, gateways, seconds) <= RATE.rate_per_s * seconds + 2 * RATE.capacity


def test_the_seat_of_an_answer_that_was_overtaken_is_not_given_twice() -> None:
    cluster = Cluster()
    one = Terms(0.0, 1.0)
    slow, other = (Gateway(name, cluster, REQUESTS, one) for name in ("slow", "other"))
    slow.ask(1.0)
    slow.report()  # overtakes the answer, and so does the next: the ledger learns that the seat never arrived
    slow.report()
    assert other.asks_and_admits(1.0)
    slow.arrives()
    assert not slow.admits(1.0)
    other.ends()
    for _ in range(3):
        other.report()
        slow.report()
    assert slow.asks_and_admits(1.0), "no seat is lost by it either"


def test_what_was_given_for_a_request_is_still_there_after_a_report_in_between() -> None:
    """The answer is there, the report goes out, and only then the request goes on."""
    cluster = Cluster()
    gateway = Gateway("r", cluster, TOKENS, RATE)
    gateway.ask(100.0)
    gateway.arrives()
    cluster.now_s += 1.0
    gateway.report()
    assert gateway.admits(100.0)


class Seats(RuleBasedStateMachine):
    """Answers come late, in any order with those to reports, or not at all."""

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster()
        self.gateways = [Gateway(f"r{number}", self.cluster, REQUESTS, SEATS) for number in range(REPLICAS)]

    @rule(by=st.floats(0.1, 1.5))
    def time_passes(self, by: float) -> None:
        self.cluster.now_s += by
        for gateway in self.gateways:  # or the ledger would take it for dead
            gateway.report()

    @rule(number=st.integers(0, REPLICAS - 1), answered=st.booleans())
    def a_replica_reports(self, number: int, answered: bool) -> None:
        self.gateways[number].report(answered=answered)

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_replica_asks(self, number: int) -> None:
        self.gateways[number].ask(1.0)

    @rule(number=st.integers(0, REPLICAS - 1))
    def an_answer_arrives(self, number: int) -> None:
        self.gateways[number].arrives()

    @rule(number=st.integers(0, REPLICAS - 1))
    def nobody_waits_for_an_answer_any_more(self, number: int) -> None:
        self.gateways[number].loses_patience()

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_request_comes(self, number: int) -> None:
        self.gateways[number].admits(1.0)

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_request_ends(self, number: int) -> None:
        self.gateways[number].ends()

    @invariant()
    def no_more_requests_run_than_there_are_seats(self) -> None:
        assert sum(len(gateway.running) for gateway in self.gateways) <= SEATS.capacity


Seats.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSeats = Seats.TestCase
