"""Every metric and label of the dashboard and the alerts exists in what a gateway and its engines expose."""

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.door import serving
from support.guard_harness import tools_request
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.monitoring import expressions, rules
from support.promql import Selector, read
from support.stack import listening

from serve.admin.metrics import merge
from serve.engine.sim import SimSettings, build_sim_app

NOWHERE = "http://127.0.0.1:9"
ENGINE: dict[str, Any] = {"grammar": "qwen3_coder", "economics": {}, "content_tokens": (3, 5)}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
LABELS_OF_ENGINES = {"model": "m", "pool": "fast"}  # as the door adds them to an engine's own


def config(fast: str, standard: str) -> dict[str, Any]:
    def pool(url: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "remote", "url": url, "facts": facts, "max_ongoing_requests": 1}

    model = {"family": "sim", "grammar": "qwen3_coder"}
    return {
        "models": {
            "m": {**model, "pools": {"fast": pool(fast, SPECULATES), "standard": pool(standard, KNOWN)}},
            "n": {**model, "pools": {"gone": pool(NOWHERE, SPECULATES), "standard": pool(standard, KNOWN)}},
        },
        "policy": {"advisories": NO_ADVISORIES, "load": "observe"},
        "rate_limits": {"enabled": True, "default": {"requests_per_minute": 24}},  # 12 at once
    }


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[str]:
    async with listening(build_sim_app(SimSettings.from_mapping({**ENGINE, **settings}))) as endpoint:
        yield endpoint.url


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> int:
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.read()
        return response.status


async def text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/metrics") as response:
        return await response.text()


async def exposed() -> dict[str, set[str]]:
    """The labels of every series after traffic in which everything happens that is counted."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fast = await stack.enter_async_context(
            engine(model="m", num_speculative_tokens=3, faults={"truncated_string": 1.0})
        )
        standard = await stack.enter_async_context(engine(model="m"))
        ports = await stack.enter_async_context(serving(config(fast, standard)))
        prose = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        await ask(session, ports.data, tools_request(model="m"))
        await asyncio.gather(*(ask(session, ports.data, {**prose, "stream": True}) for _ in range(4)))
        await ask(session, ports.data, {**prose, "model": "n"})
        statuses = [await ask(session, ports.data, prose) for _ in range(12)]
        assert statuses[-1] == 429
        async with asyncio.timeout(20):
            while "specgate_clean_rate{" not in (own := await text(session, ports.door)):  # noqa: ASYNC110  only asking tells
                await asyncio.sleep(0.1)  # counts are reported once a second
        labels = {"replica": "engine", **LABELS_OF_ENGINES}
        told = merge([({}, own), (labels, await text(session, fast))])
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(told):
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
