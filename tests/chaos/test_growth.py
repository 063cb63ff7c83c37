"""Pools that grow with their load."""

import asyncio

import aiohttp
import pytest
from support.cluster import Cluster
from support.load import End, LoadResult, ask, under_load
from support.pools import hello

pytestmark = pytest.mark.ray


async def test_a_pool_grows_with_its_load_and_not_beyond_its_limit(cluster: Cluster) -> None:
    (first,) = cluster.replicas("grown--p")

    async def grow() -> None:
        await cluster.until_replicas("grown--p", 2)

    tally = await under_load(cluster.url, lambda n: hello("grown", n), grow, at_least=50, concurrency=12)
    assert set(tally.ends) == {End.COMPLETE}, tally
    async with aiohttp.ClientSession() as session:
        later = LoadResult()
        await asyncio.gather(*(ask(session, cluster.url, hello("grown", n), later) for n in range(12)))
    assert len(later.engines) == 2
    assert first.pid in later.engines
