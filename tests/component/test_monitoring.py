"""Every metric and label of the dashboard and the alerts exists in what a gateway and its engines expose."""

import asyncio
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.monitored import LABELS_OF_ENGINE, Monitored, monitored
from support.monitoring import expressions, rules
from support.prometheus import needs_prometheus, prometheus
from support.promql import Selector, read

from serve.admin.merged_metrics import merge

RECORDED = {rule["record"] for rule in rules() if "record" in rule}
ALERTS = {rule["alert"] for rule in rules() if "alert" in rule}


async def exposed() -> dict[str, set[str]]:
    """The labels of every series after some traffic."""
    async with monitored() as running:
        await running.round()
        async with asyncio.timeout(20):  # counts of quarantine are reported once a second
            while "specgate_clean_rate{" not in (own := await running.metrics(running.admin_api)):
                await running.round()
        reply = merge([({}, own), (LABELS_OF_ENGINE, await running.metrics(running.engine))])
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(reply):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


@pytest.fixture(scope="module")
async def series() -> dict[str, set[str]]:
    return await exposed()


def selectors() -> dict[str, tuple[Selector, ...]]:
    return {place: read(expression).selectors for place, expression in expressions().items()}


async def test_every_metric_exists(series: dict[str, set[str]]) -> None:
    used = {selector.metric: place for place, found in selectors().items() for selector in found}
    assert {metric: place for metric, place in used.items() if metric not in series.keys() | RECORDED} == {}


async def test_every_label_exists(series: dict[str, set[str]]) -> None:
    for place, found in selectors().items():
        for selector in found:
            # A label that must be empty is one that others have: processes of engines have a pool.
            asked = {label for label, _, value in selector.matchers if value}
            if selector.metric not in RECORDED:
                assert asked <= series[selector.metric], f"{place}: {selector}"


async def test_every_label_that_is_grouped_by_exists(series: dict[str, set[str]]) -> None:
    for place, expression in expressions().items():
        query = read(expression)
        had = set().union(*(series.get(selector.metric, {"model", "pool"}) for selector in query.selectors))
        assert query.grouped <= had, place


def test_engines_metrics_have_the_names_that_vllm_gives_them() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed here")
    sources = [path.read_text(encoding="utf-8") for path in (Path(found.origin).parent / "v1").rglob("metrics/*.py")]
    sources += [path.read_text(encoding="utf-8") for path in (Path(found.origin).parent / "v1").rglob("metrics.py")]
    named = set(re.findall(r"vllm:[a-z_]+", "".join(sources)))
    used = {each.metric for found in selectors().values() for each in found if each.metric.startswith("vllm:")}
    assert len(used) > 5
    assert {metric.removesuffix("_total") for metric in used} <= named


def targets_of(running: Monitored) -> list[dict[str, Any]]:
    return [
        {"targets": [running.admin_api.partition("://")[2]]},
        {"targets": [running.engine.partition("://")[2]], "labels": LABELS_OF_ENGINE},
    ]


@needs_prometheus
async def test_prometheus_has_a_finite_answer_for_every_panel_and_every_recorded_series(tmp_path: Path) -> None:
    waiting = {place: each for place, each in expressions().items() if place not in ALERTS}
    async with monitored() as running, prometheus(tmp_path, targets_of(running)) as asked:
        for _ in range(100):
            await running.round()
            answers = {place: await asked.values(each) for place, each in waiting.items()}
            waiting = {place: waiting[place] for place, found in answers.items() if not any(map(math.isfinite, found))}
            if not waiting:
                break
    assert waiting == {}
