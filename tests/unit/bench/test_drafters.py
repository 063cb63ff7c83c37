"""What the laptop config calls proven rests on measurements that are committed."""

import json
from pathlib import Path

import pytest

from bench.drafters.evidence import difference, proven
from serve.config.gateway import GatewayConfig

ROOT = Path(__file__).parents[3]
ROWS = json.loads((ROOT / "bench" / "results" / "drafters.json").read_text())


def test_the_laptop_config_calls_proven_what_was_measured_and_nothing_else():
    config = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml")
    claimed = {name: set(model.pools["speculative"].proven) for name, model in config.models.items()}
    assert claimed == proven(ROWS)


def test_a_class_is_proven_only_if_every_cell_of_it_carries():
    row = {"model": "m", "request_class": "tools_auto", "carries": True}
    assert proven([row, {**row, "carries": False}, {**row, "request_class": "json_object"}]) == {"m": {"json_object"}}


@pytest.mark.parametrize(("rates", "interval"), [
    ((56, 70, 48, 80), (0.0524, 0.3339)),  # the worked example of Newcombe (1998), method 10
    ((0, 0, 1, 1), (-1.0, 1.0)),
])  # fmt: skip
def test_the_interval_of_a_difference_is_newcombes(rates, interval):
    assert difference(*rates) == pytest.approx(interval, abs=1e-3)
