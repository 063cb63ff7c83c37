"""What a gateway replica shows of its pools and of itself."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from serve.config.gateway import GatewayConfig
from serve.gateway.metrics import ReplicaMetrics, Vitals
from serve.gateway.scale import Scale
from serve.http1.allowance import Allowance
from serve.routing.endpoint import Endpoint
from serve.routing.pool import Occupancy

POOLS: dict[str, Any] = {
    "fixed": {"kind": "sim", "replicas": 2},
    "elastic": {"kind": "sim", "autoscaling": {"min_replicas": 0, "max_replicas": 3}},
    "remote": {"kind": "remote", "url": "http://unused", "max_ongoing_requests": 32},
}
CONFIG = GatewayConfig.parse({"models": {"m": {"family": "sim", "grammar": "hermes", "pools": POOLS}}})
ENGINE = Endpoint("http://engine", "key")


class Pool:
    def __init__(self, slots: int | None, held: int, waiting: int, engines: int) -> None:
        queue = Counter({("acme", "batch"): waiting, ("acme", "interactive"): bool(waiting)})
        self._occupancy = Occupancy(slots, held, queue, (ENGINE,) * engines)

    def occupancy(self) -> Occupancy:
        return self._occupancy


def points(vitals: Vitals, use: Callable[[ReplicaMetrics], None] = lambda _: None) -> dict[str, list[Any]]:
    reader = InMemoryMetricReader()
    pools = {
        ("m", "fixed"): Pool(16, 3, 5, engines=1),
        ("m", "elastic"): Pool(None, 0, 0, engines=0),
        ("m", "remote"): Pool(32, 1, 0, engines=1),
    }
    use(ReplicaMetrics(MeterProvider([reader]).get_meter("t"), Scale(CONFIG), pools, vitals))  # type: ignore[arg-type]
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in metrics}


def shown(vitals: Vitals, use: Callable[[ReplicaMetrics], None] = lambda _: None) -> dict[str, dict[str, Any]]:
    """Each metric's values by pool."""
    told = points(vitals, use)
    return {name: {(point.attributes or {}).get("pool", ""): point for point in each} for name, each in told.items()}


def by_labels(vitals: Vitals, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(point.attributes[label] for label in labels): point.value for point in points(vitals)[name]}


def values(told: dict[str, dict[str, Any]], name: str) -> dict[str, float]:
    return {pool: point.value for pool, point in told[name].items()}


def test_each_pool_shows_how_full_it_is_and_what_it_should_have() -> None:
    told = shown(Vitals(Allowance(), lambda: None, None))
    assert values(told, "specgate.pool.replicas") == {"fixed": 1, "elastic": 0, "remote": 1}
    assert values(told, "specgate.pool.replicas_wanted") == {"fixed": 2, "elastic": 0, "remote": 1}
    assert values(told, "specgate.pool.slots_held") == {"fixed": 3, "elastic": 0, "remote": 1}


def test_what_waits_is_told_by_priority() -> None:
    waiting = by_labels(Vitals(Allowance(), lambda: None, None), "specgate.pool.waiting", "pool", "priority")
    assert waiting["fixed", "batch"] == 5
    assert waiting["fixed", "interactive"] == 1
    assert waiting["fixed", "standard"] == waiting["remote", "batch"] == 0


def test_slots_are_those_of_the_pool_and_unknown_ones_are_not_shown() -> None:
    told = shown(Vitals(Allowance(), lambda: None, None))
    assert values(told, "specgate.pool.slots") == {"fixed": 16, "remote": 32}


@pytest.mark.parametrize(("refused", "value"), [(None, 0), ("unknown key", 1)])
def test_a_refused_update_of_the_policy_shows(refused: str | None, value: int) -> None:
    assert values(shown(Vitals(Allowance(), lambda: refused, None)), "specgate.policy.update_refused") == {"": value}


def test_held_bodies_and_the_age_of_quarantine_show() -> None:
    told = shown(Vitals(Allowance(held_bytes=77), lambda: None, lambda: 2.5))
    assert values(told, "specgate.request.bodies") == {"": 77}
    assert values(told, "specgate.detector.age") == {"": 2.5}


def test_without_quarantine_it_has_no_age() -> None:
    assert "specgate.detector.age" not in shown(Vitals(Allowance(), lambda: None, None))


def test_lag_of_the_event_loop_is_a_histogram() -> None:
    told = shown(Vitals(Allowance(), lambda: None, None), lambda metrics: metrics.loop_lagged(0.03))
    point = told["specgate.event_loop.lag"][""]
    assert (point.count, point.sum, point.max) == (1, 0.03, 0.03)
