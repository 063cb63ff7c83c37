"""What replicas and the actor count together: once, and never less than somebody who lives has seen of it.

Messages get lost on either way, come twice and late; the actor dies with or without its state, and replicas vanish.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.clock import run

from serve.errors import SharedStateError
from serve.shared.link import LocalLink
from serve.shared.report import SETTLE_S, Acknowledgement, Pending, Register, Report, Reporter

Items = tuple[int, ...]  # each has a number of its own, so that it can be told from any other
State = tuple[int, ...]
FATES = ("arrives", "request is lost", "answer is lost", "arrives twice", "answer is an old one")
log = logging.getLogger("test")


class Actor:
    """Counts items; the state is all of them, in the order in which they came."""

    def __init__(self, settle_s: float, clock: Callable[[], float]) -> None:
        self.items: list[int] = []
        self.register: Register[Items, State] = Register(self._book, self._answer, self._restore, settle_s, clock)

    def _book(self, report: Report[Items, State]) -> None:
        self.items.extend(report.content)

    async def _answer(self, _: Report[Items, State]) -> State:
        return tuple(self.items)

    def _restore(self, state: State) -> None:
        self.items[:] = state


class Replica:
    """Counts items too, and has the state as it was told."""

    def __init__(self, send: Callable[[Report[Items, State]], Awaitable[Acknowledgement[State] | Pending]]) -> None:
        self.counted: list[int] = []
        self.new: list[int] = []
        self.state: State = ()
        self.reporter = Reporter(send, self._collect, self._adopt, "the actor", "Meanwhile, nothing.", log)

    def _collect(self) -> Items:
        new, self.new = tuple(self.new), []
        return new

    def _adopt(self, state: State) -> None:
        assert set(self.state) <= set(state), "a state was adopted that is older than what was seen"
        self.state = state


class System(RuleBasedStateMachine):
    """Three replicas and one actor."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.fate = "arrives"
        self.ids = count()
        self.sent: list[Report[Items, State]] = []
        self.replies: list[Acknowledgement[State]] = []
        self.newest: Acknowledgement[State] | None = None  # that this actor has given
        self.kept: Acknowledgement[State] | None = None
        self.actor: Actor | None = None

    @initialize()
    def start(self) -> None:
        self.actor = self._actor(0.0)
        self.replicas = [Replica(self._send) for _ in range(3)]

    @rule(number=st.integers(0, 2))
    def a_replica_counts(self, number: int) -> None:
        item = next(self.ids)
        self.replicas[number].counted.append(item)
        self.replicas[number].new.append(item)

    @rule(number=st.integers(0, 2), fate=st.sampled_from(FATES))
    def a_replica_reports(self, number: int, fate: str) -> None:
        self.fate = fate
        replica = self.replicas[number]
        answered = run(replica.reporter.sync())
        self.fate = "arrives"
        assert answered is not replica.reporter.alone or fate == "answer is an old one"
        if answered:
            assert set(replica.counted) <= set(replica.state)

    @precondition(lambda self: self.actor is not None and self.actor.register.has_begun)
    @rule(number=st.integers(0, 2))
    def an_operator_changes_the_state_through_a_replica(self, number: int) -> None:
        assert self.actor is not None
        if run(self.replicas[number].reporter.sync()):
            self.actor.items.append(next(self.ids))
            self.replicas[number].reporter.adopt(self.actor.register.changed(tuple(self.actor.items)))

    @rule(number=st.integers(0, 30))
    def an_old_report_comes_late(self, number: int) -> None:
        if self.sent and self.actor is not None:
            run(self.actor.register.take(self.sent[-1 - number % len(self.sent)]))

    @rule(number=st.integers(0, 2))
    def a_replica_vanishes_and_another_joins(self, number: int) -> None:
        self.replicas[number] = Replica(self._send)

    @rule()
    def the_actor_saves(self) -> None:
        if self.newest is not None:
            self.kept = self.newest

    @rule()
    def the_actor_dies(self) -> None:
        self.actor = None

    @precondition(lambda self: self.actor is None)
    @rule(saved=st.booleans())
    def the_actor_is_back(self, saved: bool) -> None:
        self.actor, self.newest = self._actor(SETTLE_S), None
        if not saved:
            self.kept = None  # the file is gone
        if self.kept is not None:
            self.actor.register.offer(self.kept)

    @precondition(lambda self: self.actor is not None)
    @rule()
    def everybody_who_lives_has_reported_in_time(self) -> None:
        for replica in self.replicas:
            run(replica.reporter.sync())
        self.now_s += SETTLE_S

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        if self.actor is not None:
            assert max(Counter(self.actor.items).values(), default=1) == 1

    def teardown(self) -> None:
        """In the end, when everybody is heard: nothing is lost of what replicas have counted, or seen."""
        self.actor = self.actor or self._actor(SETTLE_S)
        self.everybody_who_lives_has_reported_in_time()
        for replica in self.replicas:
            assert run(replica.reporter.sync())
        for replica in self.replicas:
            assert set(replica.counted) | set(replica.state) <= set(self.actor.items)
        self.nothing_is_counted_twice()

    def _actor(self, settle_s: float) -> Actor:
        return Actor(settle_s, lambda: self.now_s)

    async def _send(self, report: Report[Items, State]) -> Acknowledgement[State] | Pending:
        if self.actor is None or self.fate == "request is lost":
            raise SharedStateError("It does not answer.")
        self.sent.append(report)
        if self.fate == "arrives twice":
            await self.actor.register.take(report)
        reply = await self.actor.register.take(report)
        if self.fate == "answer is lost":
            raise SharedStateError("It does not answer.")
        if isinstance(reply, Acknowledgement):
            own = [each for each in self.replies if each.number < reply.number]
            self.replies.append(reply)
            self.newest = reply
            if self.fate == "answer is an old one" and own:
                return own[-1]
        return reply


System.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSystem = System.TestCase


def rig(settle_s: float = 0.0) -> tuple[list[float], list[int], Register[int, int], Reporter[int, int], list[str]]:
    """A register whose every answer is another number, and a reporter that adopts them."""
    now, adopted, fates, numbers = [0.0], list[int](), list[str](), count(1)

    async def answer(_: Report[int, int]) -> int:
        return next(numbers)

    register: Register[int, int] = Register(lambda _: None, answer, None, settle_s, lambda: now[0])

    async def send(report: Report[int, int]) -> Acknowledgement[int] | Pending:
        reply = await register.take(report)
        if fates and fates.pop(0) == "lost":
            raise SharedStateError("It does not answer.")
        return reply

    reporter = Reporter(send, lambda: 0, adopted.append, "the actor", "Meanwhile, nothing.", log, lambda: now[0])
    return now, adopted, register, reporter, fates


def test_what_an_answer_gives_is_given_once_and_never_lost() -> None:
    _, adopted, _, reporter, fates = rig()
    run(reporter.sync())
    fates += ["lost"] * 3
    for _ in range(3):
        assert not run(reporter.sync())
    assert run(reporter.sync())
    assert adopted == [1, 2, 3], "the lost one, and that of the next report"


def test_an_answer_that_is_older_than_what_was_seen_changes_nothing() -> None:
    """A report's answer got lost; before it is sent again, an order has changed the state."""
    items, adopted, fates = [1], list[State](), ["lost"]

    async def answer(_: Report[int, State]) -> State:
        return tuple(items)

    register: Register[int, State] = Register(lambda _: None, answer)

    async def send(report: Report[int, State]) -> Acknowledgement[State] | Pending:
        reply = await register.take(report)
        if fates:
            raise SharedStateError(fates.pop())
        return reply

    reporter = Reporter(send, lambda: 0, adopted.append, "the actor", "Meanwhile, nothing.", log)
    assert not run(reporter.sync())
    items.append(2)
    reporter.adopt(register.changed(tuple(items)))
    assert run(reporter.sync())
    assert adopted == [(1, 2), (1, 2)], "that of the order and that of the next report"


def test_a_replica_is_alone_from_the_first_silence_to_the_next_answer(caplog: pytest.LogCaptureFixture) -> None:
    now, _, _, reporter, fates = rig()
    assert run(reporter.sync())
    fates += ["lost", "lost"]
    now[0] = 50.0
    for _ in range(2):
        run(reporter.sync())
        assert (reporter.alone, reporter.age_s) == (True, 50.0)
    run(reporter.sync())
    assert (reporter.alone, reporter.age_s) == (False, 0.0)
    assert len(caplog.records) == 2, "one line when it falls silent and one when it is back"


def test_a_register_that_falls_silent_again_and_again_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, _, _, reporter, fates = rig()
    for _ in range(100):
        fates += ["lost", "answered"]
        run(reporter.sync())
        now[0] += 0.1
        run(reporter.sync())
    assert len(caplog.records) == 2
    now[0] += 60.0
    fates += ["lost"]
    run(reporter.sync())
    assert len(caplog.records) == 3, "also where it began within the minute"


def test_a_register_that_begins_answers_nobody_before_it_has_settled() -> None:
    now, adopted, register, reporter, _ = rig(SETTLE_S)
    assert not run(reporter.sync())
    assert reporter.alone
    now[0] = SETTLE_S - 0.1
    assert not run(reporter.sync())
    assert not register.has_begun
    now[0] = SETTLE_S
    assert run(reporter.sync())
    assert adopted == [1]


def test_a_register_without_a_state_to_go_on_from_books_what_it_is_told_while_it_settles() -> None:
    """Each report once, and new ones too: what replicas do on their own meanwhile is known when it has settled."""
    now, sent, booked = [0.0], count(), list[int]()

    async def answer(_: Report[int, int]) -> int:
        return 0

    register: Register[int, int] = Register(
        lambda report: booked.append(report.content), answer, None, SETTLE_S, lambda: now[0]
    )
    fates = ["lost"]

    async def send(report: Report[int, int]) -> Acknowledgement[int] | Pending:
        reply = await register.take(report)
        if fates:
            raise SharedStateError(fates.pop())
        return reply

    reporter: Reporter[int, int] = Reporter(send, lambda: next(sent), lambda _: None, "it", "Nothing.", log)
    assert not run(reporter.sync())
    assert not run(reporter.sync())
    assert reporter.is_settling
    assert booked == [0, 1]
    now[0] = SETTLE_S
    assert run(reporter.sync())
    assert booked == [0, 1, 2]


def test_an_answer_that_failed_is_tried_again_and_the_report_booked_once() -> None:
    booked, fails = list[int](), [True]

    async def answer(_: Report[int, int]) -> int:
        if fails.pop():
            raise SharedStateError("What stands behind it is away.")
        return 5

    register: Register[int, int] = Register(lambda report: booked.append(report.number), answer)
    with pytest.raises(SharedStateError):
        run(register.take(Report("r", 1, 0)))
    fails.append(False)
    assert run(register.take(Report("r", 1, 0))).state == 5  # type: ignore[union-attr]
    assert booked == [1]


async def test_reports_of_one_replica_are_never_under_way_together() -> None:
    """A request that needs something at once sends a report beside the one of each second."""
    under_way, most = [0], [0]

    async def answer(_: Report[int, int]) -> int:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0)
        under_way[0] -= 1
        return 0

    register: Register[int, int] = Register(lambda _: None, answer)
    reporter: Reporter[int, int] = Reporter(register.take, lambda: 0, lambda _: None, "it", "Nothing.", log)
    assert all(await asyncio.gather(*(reporter.sync() for _ in range(5))))
    assert most == [1]


async def test_a_local_link_calls_functions_and_coroutines_alike() -> None:
    class Both:
        def now(self, value: int) -> int:
            return value

        async def later(self, value: int) -> int:
            return value

    link = LocalLink(Both())
    assert [await link.call("now", 1), await link.call("later", 2)] == [1, 2]
