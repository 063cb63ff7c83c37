"""Deaths under a load of streams: what had not begun is not lost, and what had begun does not end as if whole."""

import asyncio

import psutil
import pytest
from support.cluster import Cluster, kill_node
from support.load import End, LoadResult, under_load
from support.pools import hello

pytestmark = pytest.mark.ray
STREAMS = 32  # so many that whatever dies has some


async def loaded(cluster: Cluster, model: str, strike: psutil.Process, *, node: bool = False) -> LoadResult:
    async def kill() -> None:
        await asyncio.sleep(0.5)  # somewhere in the middle of the streams
        kill_node(strike) if node else strike.kill()
        await asyncio.sleep(3)

    return await under_load(cluster.url, lambda n: hello(model, n), kill, at_least=100, concurrency=STREAMS)


async def test_an_engine_replica(cluster: Cluster) -> None:
    tally = await loaded(cluster, "agent", cluster.replicas("agent--p")[0])
    assert set(tally.ends) == {End.COMPLETE, End.ERROR_FRAME}, tally
    assert tally.ends[End.ERROR_FRAME] <= STREAMS, tally
    await cluster.until_replicas("agent--p", 3)


async def test_a_gateway_replica(cluster: Cluster) -> None:
    """Its streams break off without a word, for nobody is left to say one; HAProxy sends the others again."""
    tally = await loaded(cluster, "agent", cluster.replicas("Gateway")[0])
    assert set(tally.ends) <= {End.COMPLETE, End.CUT}, tally
    assert 0 < tally.ends[End.CUT] <= STREAMS, tally
    await cluster.until_replicas("Gateway", 2)


async def test_the_worker_node(cluster: Cluster, worker: psutil.Process) -> None:
    tally = await loaded(cluster, "homes", worker, node=True)
    assert set(tally.ends) == {End.COMPLETE, End.ERROR_FRAME}, tally
    assert tally.ends[End.ERROR_FRAME] <= STREAMS, tally
    assert set(tally.engines) > {each.pid for each in cluster.replicas("homes--near")}
