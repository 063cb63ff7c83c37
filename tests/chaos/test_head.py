"""The head node dies: without Ray's state elsewhere the other nodes serve for a minute, with it until it is back.

A gateway is asked at its own port, as a load balancer in front of several nodes would: all nodes of this machine have
one address, and HAProxy's port is the head's.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.cluster import Cluster, kill_node, running
from support.limits_store import StoreServer, needs_server
from support.load import End, LoadResult, ask
from support.pools import hello
from support.session import answering

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif("SPECGATE_UPDATE_REQUESTS" not in os.environ, reason="three minutes: make test-chaos"),
]
NODES_WAIT_S = 60  # for the head, before Ray ends them
ON_WORKER = {"num_cpus": 0, "resources": {"worker": 0.01}}
STREAM = {"step_ms": 50, "content_tokens": [100, 100]}
CONFIG: dict[str, Any] = {
    "replicas": 1,
    "ray_actor_options": ON_WORKER,
    "models": {
        "agent": {
            "family": "sim",
            "grammar": "hermes",
            "pools": {"p": {"kind": "sim", "sim": STREAM, "ray_actor_options": ON_WORKER}},
        }
    },
}


@asynccontextmanager
async def streams(url: str) -> AsyncIterator[LoadResult]:
    """One begins every second, on a connection of its own."""
    result, over = LoadResult(), asyncio.Event()

    async def begin() -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for number in itertools.count():
                if over.is_set():
                    return
                group.create_task(ask(session, url, hello("agent", number), result))
                await asyncio.sleep(1)

    load = asyncio.create_task(begin())
    try:
        yield result
    finally:
        over.set()
        await load


async def deployed(cluster: Cluster) -> str:
    cluster.add_worker(cpus=4)
    await cluster.deploy(CONFIG)
    (gateway,) = await cluster.until_replicas("Gateway", 1)
    return await answering(gateway, "/v1/models", {})


async def test_without_the_head_the_other_nodes_serve_for_a_minute(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        url = await deployed(cluster)
        async with streams(url) as result:
            await asyncio.sleep(10)
            kill_node(cluster.head)
            await asyncio.sleep(NODES_WAIT_S - 15)
        assert set(result.ends) == {End.COMPLETE}, result
        await asyncio.sleep(30)
        async with streams(url) as result:
            await asyncio.sleep(1)
        assert set(result.ends) == {End.LOST}, result


@needs_server
@pytest.mark.skipif(os.geteuid() != 0, reason="a second head on this machine needs a PID namespace of its own")
async def test_a_head_whose_state_is_in_redis_comes_back_and_nobody_has_noticed(tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    await store.start()
    try:
        state = {"RAY_REDIS_ADDRESS": f"127.0.0.1:{store.port}", "RAY_external_storage_namespace": "specgate"}
        with running(tmp_path, **state) as cluster:
            url = await deployed(cluster)
            engines = {each.pid for each in cluster.replicas("agent--p")}
            async with streams(url) as result:
                await asyncio.sleep(10)
                kill_node(cluster.head)
                await asyncio.sleep(15)
                await asyncio.to_thread(cluster.start_head, again=True)
                await cluster.until_replicas("Gateway", 1)
                await asyncio.sleep(NODES_WAIT_S)
            assert set(result.ends) == {End.COMPLETE}, result
            assert {each.pid for each in cluster.replicas("agent--p")} == engines
    finally:
        store.stop()
