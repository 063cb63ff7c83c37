"""The alerts whose causes are deaths in a cluster: nodes that are gone, shared actors that are killed or hang."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cluster import Cluster, kill_node, running
from support.prometheus import needs_prometheus, prometheus, until_fired, until_silent

pytestmark = pytest.mark.ray
MINUTE_S = 2.0  # of the rules
CPUS = 1  # of a node
# One replica on each of two workers.
POOLS = {"far": {"kind": "sim", "replicas": 2, "ray_actor_options": {"num_cpus": 0, "resources": {"worker": 1}}}}
CONFIG: dict[str, Any] = {
    "ray_actor_options": {"num_cpus": 0.1},
    "models": {"m": {"family": "sim", "grammar": "hermes", "pools": POOLS}},
    "rate_limits": {"enabled": True},
}


async def keep_killing(cluster: Cluster, title: str) -> None:
    """Kills an actor as often as Ray brings it back."""
    while True:
        for process in cluster.processes(title):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(0.1)


async def started(cluster: Cluster, title: str) -> psutil.Process:
    """Waits for an actor that may have died with its node; Ray starts it again on another one."""
    async with asyncio.timeout(60):
        while True:
            for process in cluster.processes(title):
                return process
            await asyncio.sleep(0.2)


@needs_prometheus
async def test_each_alert_fires_while_its_cause_lasts_and_stops_after(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        workers = [cluster.add_worker(CPUS) for _ in range(2)]
        await cluster.deploy(CONFIG)
        async with prometheus(tmp_path, [{"targets": [cluster.admin_api.partition("://")[2]]}], MINUTE_S) as asked:
            await until_silent(asked)

            kill_node(workers[0])
            await until_fired(asked, [("SpecgatePoolShort", {"model": "m", "pool": "far"})])

            kill_node(workers[1])
            killing = asyncio.create_task(keep_killing(cluster, "ray::LedgerActor"))
            detector = await started(cluster, "ray::QuarantineActor")
            detector.send_signal(signal.SIGSTOP)
            await until_fired(asked, [
                ("SpecgatePoolDown", {"model": "m", "pool": "far"}),
                ("SpecgateLedgerAway", {}),
                ("SpecgateDetectorAway", {}),
            ])  # fmt: skip

            killing.cancel()
            detector.send_signal(signal.SIGCONT)
            for _ in workers:
                cluster.add_worker(CPUS)
            await until_silent(asked)
