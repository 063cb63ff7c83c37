"""Limits of two gateway replicas in a Ray cluster: their ledger is killed under load, and no client notices."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.cluster import Cluster, running
from support.limits_store import StoreServer, needs_server

from serve.limits.book import FILE, read

pytestmark = pytest.mark.ray
CLIENTS = 8
BODY = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
PLENTY = {"requests_per_minute": 10**8, "tokens_per_minute": 10**10, "concurrency": 10**6}
HELD_S = 2.0  # a request on a busy test machine takes far less; one that waits for a dead actor far more


def config(state_dir: Path) -> dict[str, Any]:
    pool = {"kind": "sim", "max_ongoing_requests": 64, "ray_actor_options": {"num_cpus": 0.1}}
    return {
        "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}},
        "access": {"state_dir": str(state_dir)},
        "rate_limits": {"enabled": True, "default": PLENTY},
        "replicas": 2,
        "ray_actor_options": {"num_cpus": 0.1},
    }


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def clients(url: str, stopped: asyncio.Event) -> list[asyncio.Task[list[tuple[int, float]]]]:
    """Half of them keep their connections, and half connect for each request."""
    return [asyncio.create_task(load(url, stopped, fresh=number % 2 == 1)) for number in range(CLIENTS)]


async def load(url: str, stopped: asyncio.Event, *, fresh: bool) -> list[tuple[int, float]]:
    """Asks over and over; returns status and duration of every answer."""
    answers = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=fresh)) as session:
        while not stopped.is_set():
            begun_s = time.monotonic()
            async with session.post(f"{url}/v1/chat/completions", json=BODY) as response:
                await response.read()
                answers.append((response.status, time.monotonic() - begun_s))
    return answers


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's ledger outlives its applications, and so does the folder that it was started with."""
    return tmp_path_factory.mktemp("state")


def booked(folder: Path) -> int:
    """Returns how many requests the ledger has booked so far."""
    rows = read(str(folder), [], None, None) if (folder / FILE).exists() else []
    return sum(row["requests"] for row in rows)


async def counted(folder: Path, expected: int) -> int:
    """Returns what is booked once that is as many as expected: replicas report once a second."""
    for _ in range(120):
        if booked(folder) == expected:
            break
        await asyncio.sleep(0.5)
    return booked(folder)


@pytest.mark.timeout(900)
async def test_usage_is_exact_while_gateway_replicas_come_and_go(bare_cluster: Cluster, state_dir: Path) -> None:
    """What a replica had counted since its last report went with it."""
    before = booked(state_dir)
    await bare_cluster.deploy(config(state_dir))
    await bare_cluster.until_replicas("Gateway", 2)
    stopped = asyncio.Event()
    asking = clients(bare_cluster.url, stopped)
    await asyncio.sleep(2)
    for replicas in (3, 1):
        await bare_cluster.deploy({**config(state_dir), "replicas": replicas})
        await bare_cluster.until_replicas("Gateway", replicas)
    await asyncio.sleep(2)
    stopped.set()
    answers = [answer for each in await asyncio.gather(*asking) for answer in each]
    assert {status for status, _ in answers} == {200}
    assert await counted(state_dir, before + len(answers)) == before + len(answers)


@pytest.mark.timeout(900)
async def test_no_request_fails_or_waits_while_the_ledger_is_dead_and_usage_is_exact_afterwards(
    bare_cluster: Cluster, state_dir: Path
) -> None:
    before = booked(state_dir)
    await bare_cluster.deploy(config(state_dir))
    await bare_cluster.until_replicas("Gateway", 2)
    stopped = asyncio.Event()
    asking = clients(bare_cluster.url, stopped)
    await asyncio.sleep(5)
    (ledger,) = bare_cluster.processes("ray::LedgerActor")
    ledger.kill()
    await asyncio.sleep(15)
    stopped.set()
    answers = [answer for each in await asyncio.gather(*asking) for answer in each]
    assert {status for status, _ in answers} == {200}
    assert max(duration_s for _, duration_s in answers) < HELD_S

    assert await counted(state_dir, before + len(answers)) == before + len(answers)
    (another,) = bare_cluster.processes("ray::LedgerActor")
    assert another.pid != ledger.pid


@needs_server
@pytest.mark.timeout(900)
async def test_no_request_fails_or_waits_while_the_store_of_several_clusters_is_dead(
    bare_cluster: Cluster, tmp_path: Path
) -> None:
    server = StoreServer(tmp_path)
    await server.start()
    shared = config(tmp_path)
    shared["rate_limits"]["store"] = {"url": server.config.url}
    try:
        await bare_cluster.deploy(shared)
        await bare_cluster.until_replicas("Gateway", 2)
        stopped = asyncio.Event()
        asking = clients(bare_cluster.url, stopped)
        await asyncio.sleep(5)
        assert await server.command("EXISTS", "{specgate}:tokens:tenant:default")
        server.stop()
        await asyncio.sleep(5)
        await server.start()
        await asyncio.sleep(5)
        stopped.set()
        answers = [answer for each in await asyncio.gather(*asking) for answer in each]
    finally:
        server.stop()
    assert {status for status, _ in answers} == {200}
    assert max(duration_s for _, duration_s in answers) < HELD_S
