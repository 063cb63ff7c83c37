"""What a gateway replica shows of its pools and of itself."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serve.config.gateway import GatewayConfig
from serve.gateway.gauges import ReplicaMetrics
from serve.gateway.pools import Scale
from serve.http1.allowance import Allowance
from serve.routing.pool import Endpoint, Occupancy
from serve.telemetry.metrics import Metrics

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


def shown(
    use: Callable[[ReplicaMetrics], None] = lambda _: None,
    *,
    held_bytes: int = 0,
    refused: str | None = None,
    days: int | None = None,
) -> dict[str, list[Sample]]:
    """Returns each metric's samples."""
    pools = {
        ("m", "fixed"): Pool(16, 3, 5, engines=1),
        ("m", "elastic"): Pool(None, 0, 0, engines=0),
        ("m", "remote"): Pool(32, 1, 0, engines=1),
    }
    metrics = Metrics()
    allowance = Allowance(held_bytes=held_bytes)
    use(ReplicaMetrics(metrics, Scale(CONFIG), pools, allowance, lambda: refused, lambda: days, {}))  # type: ignore[arg-type]
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {family.name: family.samples for family in families}


def by_labels(samples: list[Sample], *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def values(reply: dict[str, list[Sample]], name: str) -> dict[str, float]:
    """Returns a metric's values by pool."""
    return {sample.labels.get("pool", ""): sample.value for sample in reply[name]}


def test_each_pool_shows_how_full_it_is_and_what_it_should_have() -> None:
    reply = shown()
    assert values(reply, "specgate_pool_replicas") == {"fixed": 1, "elastic": 0, "remote": 1}
    assert values(reply, "specgate_pool_replicas_wanted") == {"fixed": 2, "elastic": 0, "remote": 1}
    assert values(reply, "specgate_pool_slots_held") == {"fixed": 3, "elastic": 0, "remote": 1}


def test_what_waits_is_told_by_priority() -> None:
    reply = shown()
    waiting = by_labels(reply["specgate_pool_waiting"], "pool", "priority")
    assert waiting["fixed", "batch"] == 5
    assert waiting["fixed", "interactive"] == 1
    assert waiting["fixed", "standard"] == waiting["remote", "batch"] == 0


def test_slots_are_those_of_the_pool_and_unknown_ones_are_not_shown() -> None:
    reply = shown()
    assert values(reply, "specgate_pool_slots") == {"fixed": 16, "remote": 32}


@pytest.mark.parametrize(("refused", "value"), [(None, 0), ("unknown key", 1)])
def test_a_refused_update_of_the_policy_shows(refused: str | None, value: int) -> None:
    assert values(shown(refused=refused), "specgate_policy_update_refused") == {"": value}


def test_held_bodies_show() -> None:
    reply = shown(held_bytes=77)
    assert values(reply, "specgate_request_bodies_bytes") == {"": 77}


def test_lag_of_the_event_loop_is_a_histogram() -> None:
    reply = shown(lambda metrics: metrics.loop_lagged(0.03))
    samples = {
        (sample.name, sample.labels.get("le")): sample.value for sample in reply["specgate_event_loop_lag_seconds"]
    }
    assert samples["specgate_event_loop_lag_seconds_sum", None] == 0.03
    assert samples["specgate_event_loop_lag_seconds_bucket", "0.025"] == 0
    assert samples["specgate_event_loop_lag_seconds_bucket", "0.05"] == 1


@pytest.mark.parametrize(("days", "value"), [(3, {"": 3.0}), (None, {})])
def test_the_age_of_the_advisories_is_shown_if_anybody_checked_them(days, value) -> None:
    assert values(shown(days=days), "specgate_advisories_age_days") == value
