"""Tenants share a full pool by their weights, over any number of gateway replicas, for a minute of virtual time."""

from dataclasses import replace

import pytest

from bench.limits.shared_pool import Demand, Setting, play

SHARING = Setting((Demand("heavy", clients=320), Demand("light", clients=32)))


@pytest.mark.parametrize(
    ("setting", "off"),
    [
        (SHARING, 0.1),
        (replace(SHARING, gateways=4), 0.15),
        (Setting((Demand("heavy", clients=320), Demand("light", clients=32, longer=3.0))), 0.1),
        (Setting((Demand("heavy", clients=480), Demand("light", clients=48, weight=2.0))), 0.1),
    ],
    ids=["equal tenants", "four gateway replicas", "longer answers than expected", "twice the weight"],
)
def test_ten_times_the_load_brings_no_more_than_the_weight(setting: Setting, off: float) -> None:
    outcome = play(setting)
    heavy, light = (outcome.total(demand.tenant) / demand.weight for demand in setting.demands)
    assert light == pytest.approx(heavy, rel=2 * off)


def test_without_fair_shares_the_load_decides() -> None:
    outcome = play(replace(SHARING, fair=False))
    assert outcome.total("heavy") > 8 * outcome.total("light")


def test_no_slot_is_idle_that_a_queue_in_the_order_of_arrival_would_use() -> None:
    assert play(SHARING).busy_s >= 0.99 * play(replace(SHARING, fair=False)).busy_s
