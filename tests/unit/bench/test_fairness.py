"""Tenants that share a full pool in virtual time: what comes out depends on the seeds alone."""

from bench.limits.shared_pool import Demand, Setting, play

LIGHT = Demand("light", per_s=5.0)  # three quarters of its share
HEAVY = Demand("heavy", clients=320)
SEEDS = range(8)


def p95_wait_s(*demands: Demand, slots: int) -> float:
    return sum(play(Setting(demands, slots, seed=seed)).p95_wait_s("light") for seed in SEEDS) / len(SEEDS)


def test_a_tenant_below_its_share_waits_no_longer_than_in_a_pool_of_its_own() -> None:
    assert p95_wait_s(HEAVY, LIGHT, slots=32) <= p95_wait_s(LIGHT, slots=16)
