"""Usage on one replica: summed up, reported once, and with few tenants in metrics."""

from serve.limits.messages import Spending, UsageKey, UsageSums
from serve.limits.tally import Tally

ONE = UsageSums(1, 10, 4, 20, 7, 0, 0)


def key(tenant: str) -> UsageKey:
    return UsageKey(tenant, "k", "m", "p", False)


def test_what_was_taken_is_not_reported_again() -> None:
    tally = Tally()
    tally.add(key("acme"), ONE)
    tally.add(key("acme"), ONE)
    tally.spend("tenant:acme", 2.5)
    assert tally.take() == ({key("acme"): UsageSums(2, 20, 8, 40, 14, 0, 0)}, (Spending("tenant:acme", 2.5),))
    assert tally.take() == ({}, ())
    assert tally.tokens["acme", "m", "output"] == 40


def test_metrics_name_two_hundred_tenants_and_count_all() -> None:
    tally = Tally()
    for number in range(500):
        tally.add(key(f"tenant-{number}"), ONE)
    usage, _ = tally.take()
    assert len(usage) == 500
    assert len({tenant for tenant, _, _ in tally.tokens}) == 201
    assert tally.tokens["other", "m", "input"] == 3000
