"""Rolling updates under load: nobody notices."""

import asyncio
import os
from typing import Any

import aiohttp
import pytest
from support.cluster import Cluster
from support.load import End, LoadResult, ask, under_load
from support.pools import changed, hello

pytestmark = pytest.mark.ray
REQUESTS = int(os.environ.get("SPECGATE_UPDATE_REQUESTS", "300"))


def pids(cluster: Cluster, *deployments: str) -> set[int]:
    return {each.pid for name in deployments for each in cluster.replicas(name)}


async def test_new_engines_replace_old_ones_and_no_request_fails(cluster: Cluster) -> None:
    """Of a sticky pool with three replicas, and of a balanced one whose only replica leaves before another comes."""
    changing = ("agent--p", "homes--far")
    old, others = pids(cluster, *changing), pids(cluster, "homes--near", "grown--p")

    async def update() -> None:
        await cluster.deploy(changed(changed(cluster.config, "agent/p", sim={"seed": 1}), "homes/far", sim={"seed": 1}))

    def body(number: int) -> dict[str, Any]:
        return hello("homes" if number % 4 < 2 else "agent", number)

    tally = await under_load(cluster.url, body, update, REQUESTS, concurrency=32)
    assert set(tally.ends) == {End.COMPLETE}, tally
    new = pids(cluster, *changing)
    assert new.isdisjoint(old)
    assert tally.engines.keys() & new
    assert pids(cluster, "homes--near", "grown--p") == others, "a pool that did not change was restarted"


async def test_new_gateways_replace_old_ones_and_no_request_fails(cluster: Cluster) -> None:
    """Streams that begin before and end long after are among them: a replica has as long as the configuration says."""
    old, engines = pids(cluster, "Gateway"), pids(cluster, "agent--p", "long--p")
    long = LoadResult()

    async def update() -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for number in range(8):  # each gateway gets some
                group.create_task(ask(session, cluster.url, hello("long", number), long))
            for _ in range(600):
                if long.engines.total() == 8:
                    break  # all have begun
                await asyncio.sleep(0.1)
            await cluster.deploy({**cluster.config, "limits": {"retry_after_s": 3}})

    tally = await under_load(cluster.url, lambda n: hello("agent", n), update, REQUESTS, concurrency=32)
    assert set(tally.ends) == {End.COMPLETE}, tally
    assert long.ends == {End.COMPLETE: 8}, long
    assert pids(cluster, "Gateway").isdisjoint(old)
    assert pids(cluster, "agent--p", "long--p") == engines, "an engine was restarted for the gateway's sake"


async def test_replicas_that_come_and_go_and_other_limits_replace_nothing(cluster: Cluster) -> None:
    gateways, (first,) = pids(cluster, "Gateway"), pids(cluster, "homes--far")

    async def update() -> None:
        more = changed(cluster.config, "homes/far", replicas=2, max_ongoing_requests=100, health_check_timeout_s=50)
        await cluster.deploy(more)
        assert first in {each.pid for each in await cluster.until_replicas("homes--far", 2)}
        await cluster.deploy(changed(more, "homes/far", replicas=1))
        await cluster.until_replicas("homes--far", 1)

    tally = await under_load(cluster.url, lambda n: hello("homes", n), update, at_least=50)
    assert set(tally.ends) == {End.COMPLETE}, tally
    assert pids(cluster, "Gateway") == gateways
