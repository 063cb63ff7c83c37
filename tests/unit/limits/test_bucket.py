"""What a bucket gives, in advance and to large requests."""

from hypothesis import given
from hypothesis import strategies as st

from serve.limits.bucket import Bucket
from serve.limits.ledger_messages import Holding, LimitTerms

RATE = LimitTerms(10.0, 300.0)
AMOUNTS = st.floats(0, 400).map(lambda amount: round(amount, 3))


def needs(amount: float) -> Holding:
    return Holding(RATE, needed=amount, whole=amount)


@given(st.lists(st.tuples(st.floats(0, 20), AMOUNTS, AMOUNTS), max_size=30))
def test_no_more_is_given_than_flows_in_and_one_burst(steps: list[tuple[float, float, float]]) -> None:
    """But for what a single request has above the burst."""
    bucket, now_s, given_ = Bucket(RATE, 0.0), 0.0, 0.0
    for by, needed, wanted in steps:
        now_s += by
        grant = bucket.grant(needs(needed)._replace(wanted=wanted), 3, now_s)
        assert grant.amount == 0 or grant.amount >= needed, "all of what is needed, or nothing"
        given_ += grant.amount
        assert given_ <= 300 + 10 * now_s + 100 + 1e-6
        assert given_ <= 300 + 10 * now_s + max(0.0, -grant.level) + 1e-6


def test_in_advance_nobody_gets_more_than_its_part() -> None:
    bucket = Bucket(RATE, 0.0)
    assert bucket.grant(Holding(RATE, wanted=300.0), 3, 0.0).amount == 100.0
    assert bucket.grant(Holding(RATE, wanted=50.0), 3, 0.0).amount == 50.0


def test_what_is_set_aside_for_a_large_request_is_anybodys_once_that_has_passed() -> None:
    bucket = Bucket(RATE, 0.0)
    assert bucket.grant(needs(300.0), 1, 0.0).amount == 300.0
    assert bucket.grant(needs(100.0), 1, 0.0).wait_s == 10.0
    assert bucket.grant(needs(60.0), 1, 8.0).amount == 0.0, "40 of the 80 are set aside"
    assert bucket.grant(needs(100.0), 1, 11.0).amount == 100.0
    assert bucket.grant(needs(5.0), 1, 11.5).amount == 5.0, "nothing is set aside any more"


def test_what_flowed_in_during_an_outage_is_no_more_than_a_burst() -> None:
    bucket = Bucket(RATE, 1000.0)
    bucket.book(Holding(RATE, level=50.0, drawn=100.0), 100.0, 1000.0)
    assert bucket.grant(needs(1.0), 1, 1000.0).level == 299.0
