"""CPU of Ray Serve's own processes by role, idle and under load: `python -m bench.scale.control`.

Runs `specgate serve` with one pool in front of the fake engine of `bench.gateway`, then with more gateway replicas, and
with more pools of simulated engines that get no requests: the controller and the detector cost CPU even for those.
"""

import argparse
import collections
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench import peers
from bench.gateway import traffic
from bench.gateway.runner import Workload, apply_load, upstream
from bench.result_rows import upsert

RESULTS = Path(__file__).parents[1] / "results" / "scale_control.json"
# Role by a mark in the process title, first match wins. Ray puts an actor's class and method there.
_ROLES = (
    ("controller", "ServeController"),
    ("gateway", ":Gateway"),
    ("idle engines", "ServeReplica"),
    ("detector", "QuarantineActor"),
    ("HAProxy's manager", "HAProxyManager"),
    ("HAProxy", "haproxy"),
    ("raylet", "raylet/raylet"),  # its command line names the dashboard's agent too
    ("GCS", "gcs_server"),
    ("dashboard", "dashboard"),
)
_POOL = """
  idle-{number}:
    family: sim
    grammar: hermes
    pools:
      standard: {{{{ kind: sim, facts: {{{{ engine_version: "0" }}}}, ray_actor_options: {{{{ num_cpus: 0.01 }}}} }}}}
"""


def role(process: psutil.Process) -> str:
    """Returns the role of one of the cluster's processes."""
    title = " ".join(process.cmdline())
    return next((name for name, mark in _ROLES if mark in title), "the rest")


def cpu_s(pid: int) -> Mapping[str, float]:
    """Returns the CPU seconds that a process and its descendants have used so far, by role."""
    used: dict[str, float] = collections.defaultdict(float)
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
            name = role(process)
        except psutil.NoSuchProcess:
            continue
        used[name] += times.user + times.system
    return used


def _between(before: Mapping[str, float], after: Mapping[str, float], per: float) -> dict[str, float]:
    return {name: round((after[name] - before.get(name, 0.0)) / per * 1000, 3) for name in sorted(after)}


def measure(gateways: int, pools: int, cells: list[Workload], idle_s: float, load_s: float) -> Iterator[dict[str, Any]]:
    """Measure one cluster: CPU per second when idle, and per answer under load.

    Args:
        gateways: Number of gateway replicas.
        pools: Number of idle pools.
        cells: Workloads to run.
        idle_s: How long to watch the idle cluster.
        load_s: Length of one run of load.
    """
    more = "".join(_POOL.format(number=number) for number in range(pools)) + f"replicas: {gateways}\n"
    row = {"gateways": gateways, "pools": pools}
    side = dataclasses.replace(peers.SPECGATE, name="specgate to be scaled", config=peers.SPECGATE.config + more)
    with upstream() as engine, peers.launched(side, engine.url, traffic.MODEL) as running:
        time.sleep(20)  # Ray's processes keep settling after the first answer
        before = cpu_s(running.pid)
        time.sleep(idle_s)
        yield row | {"load": "idle", "cpu_ms_a_second": _between(before, cpu_s(running.pid), idle_s)}
        for cell in cells:
            apply_load(running.url, cell, 2.0)  # warm up
            before = cpu_s(running.pid)
            sample = apply_load(running.url, cell, load_s)
            answers = len(sample.latency_ms)
            yield row | {
                "load": cell.name,
                "answers_per_s": round(answers / sample.elapsed_s, 1),
                "cpu_ms_an_answer": _between(before, cpu_s(running.pid), answers),
            }


def main() -> None:
    """Measure, print one line per row, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", default="1+0,1+8,4+0", help="gateway replicas + idle pools, per cluster")
    parser.add_argument("--cells", default="short@16,paced@16", help="workloads, as in bench.gateway")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch an idle cluster")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run of load")
    options = parser.parse_args()
    peers.stop_when_told()
    cells = [Workload.parse(name) for name in options.cells.split(",") if name]
    for cluster in options.clusters.split(","):
        gateways, _, pools = cluster.partition("+")
        for row in measure(int(gateways), int(pools), cells, options.idle, options.seconds):
            print(json.dumps(row), flush=True)
            upsert(RESULTS, row, ("gateways", "pools", "load"))


if __name__ == "__main__":
    main()
