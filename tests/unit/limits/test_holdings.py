"""What a replica holds, answer by answer of its ledger."""

from serve.limits.holdings import Holdings
from serve.limits.messages import Grant, Meter, Reply, Terms

SEATS = Meter("tenant:acme", "concurrency")


def test_who_meets_a_ledger_that_has_just_begun_has_a_first_share() -> None:
    # One in the first requests of a gateway was refused, though its tenant had twenty seats: the ledger had told the
    # level in an answer to a report before the request's own question was answered.
    holdings = Holdings("r", 1, 0.0)
    seats = holdings.slice(SEATS, Terms(0.0, 20.0), 0.0)
    holdings.report(1.0, {})
    holdings.answered(Reply(1, settling=True, grants={SEATS: Grant(0.0, level=20.0)}), 1.0)
    assert holdings.alone
    assert seats.take(6.0, 1.0)
