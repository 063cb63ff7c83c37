"""Metrics as Prometheus sees them."""

from prometheus_client.parser import text_string_to_metric_families

from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Metrics


def lines(metrics: Metrics) -> list[str]:
    return metrics.exposition().decode().splitlines()


def test_a_request_shows_under_its_labels() -> None:
    telemetry = Telemetry({})
    telemetry.ended(0.0, "m", "p", "on", 200)
    telemetry.decided("m", "p", [])
    telemetry.retried("p")
    shown = lines(telemetry.metrics)
    labels = 'model="m",pool="p",speculative="on",status="200"'
    assert f"specgate_requests_total{{{labels}}} 1.0" in shown
    assert f"specgate_request_duration_seconds_count{{{labels}}} 1.0" in shown
    assert 'specgate_decisions_total{model="m",pool="p",reason=""} 1.0' in shown
    assert 'specgate_retries_total{pool="p"} 1.0' in shown


def test_what_is_read_is_read_at_each_scrape_and_not_before() -> None:
    numbers = iter([1.0, 2.0])
    metrics = Metrics()
    metrics.read("gauge", "depth", "How deep", ["well"], lambda: [(("a",), next(numbers))])
    metrics.read("counter", "drops", "Drops", [], lambda: [((), 7)])
    for depth in (1.0, 2.0):
        assert {f'depth{{well="a"}} {depth}', "drops_total 7.0"} <= set(lines(metrics))


def test_two_replicas_in_one_process_count_apart() -> None:
    one, other = Telemetry({}), Telemetry({})
    one.retried("p")
    assert 'specgate_retries_total{pool="p"} 1.0' in lines(one.metrics)
    assert not [line for line in lines(other.metrics) if line.startswith("specgate_retries_total{")]


def test_no_series_tells_when_another_was_created() -> None:
    telemetry = Telemetry({})
    telemetry.ended(0.0, "m", "p", "on", 200)
    assert not [line for line in lines(telemetry.metrics) if "_created" in line]


def test_everything_declared_is_shown_under_its_name_and_type() -> None:
    telemetry = Telemetry({})
    shown = {family.name: family for family in text_string_to_metric_families("\n".join(lines(telemetry.metrics)))}
    for metric in telemetry.metrics.declared:
        family = shown[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type, metric.description)
