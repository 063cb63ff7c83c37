"""What a replica asks of the ledger, and how often."""

from serve.limits.ledger_messages import Grant, LimitId, LimitTerms
from serve.limits.slice import Holdings, RateSlice, SeatSlice, reserve


def test_a_demand_that_has_just_begun_asks_ever_more_rarely() -> None:
    """The ledger is a call to another process; before the first report nobody knows yet what a replica will need."""
    held = RateSlice(LimitId("tenant:a", "tokens"), LimitTerms(1e6, 3e7), replicas=1, now_s=0.0)
    asked = 0
    for _ in range(1000):
        if not held.take(100.0, 0.0):
            held.needs.append(100.0)
            need = held.holding(0.0)
            held.adopt(Grant(need.needed + need.wanted, 1e6), 0.0)
            assert held.take(100.0, 0.0)
            asked += 1
    assert asked <= 12


def test_a_lone_replica_with_a_tiny_share_tells_nobody_to_wait_for_hours() -> None:
    held = RateSlice(LimitId("tenant:a", "tokens"), LimitTerms(1000.0, 30_000.0), replicas=1, now_s=0.0)
    held.adopt(Grant(0.0, 0.0, share=1e-3), 0.0)
    held.settle(0.0, 5_000.0)
    held.draw(0.0)
    assert 0 < held.wait_s(100.0, 0.0) <= 30.0


def test_free_seats_go_back_while_another_one_is_used() -> None:
    """After a rush a replica kept them for as long as a single request came now and then; others were refused."""
    seats = SeatSlice(LimitId("tenant:a", "concurrency"), LimitTerms(0.0, 10.0), replicas=2, now_s=0.0)
    seats.adopt(Grant(10.0, 0.0), 0.0)
    assert seats.take(10.0, 0.0)
    seats.free(9.0)
    kept = []
    for second in (1.0, 2.0, 3.0):
        assert seats.take(1.0, second)
        kept.append(seats.holding(second).held)
        seats.free(1.0)
    assert kept == [10.0, 10.0, 2.0]


def test_where_seats_are_plenty_they_stay_and_as_many_again_are_asked_for() -> None:
    """Who has but the seats that it needs now refuses the next request as soon as the ledger is gone."""
    seats = SeatSlice(LimitId("tenant:a", "concurrency"), LimitTerms(0.0, 100.0), replicas=2, now_s=0.0)
    seats.adopt(Grant(4.0, 96.0), 0.0)
    assert seats.take(4.0, 0.0)
    seats.needs.append(1.0)
    need = seats.holding(0.0)
    assert (need.needed, need.wanted) == (1.0, 5.0)
    seats.free(4.0)
    assert [seats.holding(second).held for second in (1.0, 2.0, 3.0)] == [4.0, 4.0, 4.0]
    seats.adopt(Grant(0.0, 20.0), 4.0)
    assert [seats.holding(second).held for second in (5.0, 6.0)][-1] == 0.0


def test_who_meets_a_ledger_that_has_just_begun_has_a_first_share() -> None:
    """One in the first requests of a gateway was refused, though its tenant had twenty seats."""
    holdings = Holdings(1)
    seats = holdings.slice(LimitId("tenant:a", "concurrency"), LimitTerms(0.0, 20.0), 0.0, alone=False)
    holdings.all(1.0)
    holdings.lost(1.0)  # it settles
    assert seats.take(6.0, 1.0)


def test_a_lone_replica_without_a_share_admits_nothing() -> None:
    """The ledger had told it that all of the rate was others'."""
    held = RateSlice(LimitId("tenant:a", "tokens"), LimitTerms(1000.0, 30_000.0), replicas=2, now_s=0.0)
    held.adopt(Grant(0.0, 0.0, share=0.0), 0.0)
    held.draw(100.0)
    assert not held.take(1.0, 100.0)
    assert held.wait_s(1.0, 100.0) > 0


def test_a_request_frees_its_seat_when_it_ends_and_at_once_if_another_limit_is_short() -> None:
    """However much it has cost, and however often it ends."""
    seats = SeatSlice(LimitId("tenant:a", "concurrency"), LimitTerms(0.0, 10.0), replicas=1, now_s=0.0)
    tokens = RateSlice(LimitId("tenant:a", "tokens"), LimitTerms(10.0, 300.0), replicas=1, now_s=0.0)
    requests = RateSlice(LimitId("tenant:a", "requests"), LimitTerms(1.0, 30.0), replicas=1, now_s=0.0)
    for held in (seats, tokens, requests):
        held.adopt(Grant(100.0 if held is tokens else 2.0, 0.0), 0.0)
    reservation = reserve((requests, seats, tokens), 80.0, 0.0)
    assert reservation is not None
    assert (requests.held, seats.held, seats.in_use, tokens.held) == (1.0, 1.0, 1.0, 20.0)
    assert reserve((requests, seats, tokens), 80.0, 0.0) is None
    assert (requests.held, seats.held, seats.in_use, tokens.held) == (1.0, 1.0, 1.0, 20.0)
    for _ in range(2):
        reservation.settle(30.0)
        assert (requests.held, seats.held, seats.in_use, tokens.held) == (1.0, 2.0, 0.0, 70.0)
