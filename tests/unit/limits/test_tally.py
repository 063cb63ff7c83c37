"""Usage on one replica: summed up, reported once, and with few tenants in metrics."""

from serve.config.rate_limits import Limits, TokenWeights
from serve.limits.usage import Tally, Usage, UsageKey, UsageSums

ONE = Usage(10, 4, 20)


def key(tenant: str) -> UsageKey:
    return UsageKey(tenant, "k", "m", "p", False)


def test_what_was_taken_is_not_reported_again() -> None:
    tally = Tally(TokenWeights())
    tally.add(key("acme"), ONE, rerun=7)
    tally.add(key("acme"), Usage(10, 4, 20, told=False), rerun=7, failed=True)
    assert tally.take() == {key("acme"): UsageSums(2, 20, 8, 40, 14, 1, 1)}
    assert tally.take() == {}
    assert tally.tokens["acme", "m", "output"] == 40


def test_what_limits_count_is_told_as_they_count_it() -> None:
    tally = Tally(TokenWeights(input=1.0, cached=0.1, output=2.0))
    tally.add(key("acme"), ONE)
    tally.add(key("acme"), ONE)
    tally.take()
    assert tally.used == {("acme", "requests"): 2, ("acme", "tokens"): 2 * (6 + 0.1 * 4 + 2 * 20)}


def test_limits_are_those_of_the_tenants_that_metrics_name() -> None:
    tally = Tally(TokenWeights())
    for number in range(500):
        tally.meet(f"tenant-{number}", Limits(concurrency=number + 1))
    tally.meet("tenant-3", Limits(concurrency=9))
    assert len(tally.limits) == 200
    assert tally.limits["tenant-3"].concurrency == 9


def test_metrics_name_two_hundred_tenants_and_count_all() -> None:
    tally = Tally(TokenWeights())
    for number in range(500):
        tally.add(key(f"tenant-{number}"), ONE)
    usage = tally.take()
    assert len(usage) == 500
    assert len({tenant for tenant, _, _ in tally.tokens}) == 201
    assert tally.tokens["other", "m", "input"] == 3000
