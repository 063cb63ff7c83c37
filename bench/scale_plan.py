"""What a cluster needs in cores for the gateway, by arithmetic on what was measured here: `python -m bench.scale_plan`.

Reads what `bench.scale`, `bench.scale_control` and `bench.scale_judge` have saved. A paced stream is the measure of a
chunk (one frame a read, the dearest way), a short whole answer that of a request.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from bench.gateway.traffic import CHUNKS

RESULTS = Path(__file__).parents[1] / "bench" / "results"
_PERIOD_S = 1.0  # between two reports of a gateway replica to the judge
_CHECK_S = 5.0  # between two looks of a HAProxy at a gateway replica, Ray Serve's default
_FULL = 0.6  # how much of its core a gateway replica, one event loop, should use


def costs(scale: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """By role: (milliseconds a request, microseconds a chunk)."""
    rows = {row["cell"]: row["cpu_ms"] for row in scale if row["gateways"] == 1}
    found = {}
    for role in ("gateway", "HAProxy"):
        request = rows["short@64"][role]
        found[role] = (request, max(rows["paced@16"][role] - request, 0.0) / CHUNKS * 1000)
    return found


def idle_costs(control: list[dict[str, Any]], role: str) -> tuple[float, float, float]:
    """Milliseconds of CPU a second of a role: of a cluster with one gateway, for one gateway more, for one engine more.

    A straight line through the clusters of `bench.scale_control`; whether it stays straight was not measured.
    """
    rows = {(row["gateways"], row["pools"]): row["cpu_ms_a_second"][role] for row in control if row["load"] == "idle"}
    alone = rows[1, 0]
    gateways, engines = max(count for count, _ in rows), max(count for _, count in rows)
    more = [(rows[gateways, 0] - alone) / (gateways - 1), (rows[1, engines] - alone) / engines]
    return (alone, max(more[0], 0.0), max(more[1], 0.0))


def main() -> None:
    """Print the plan as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="one engine replica each")
    parser.add_argument("--streams", type=int, default=64, help="answers at a time on a node")
    parser.add_argument("--chunks-per-s", type=float, default=30, help="of one stream")
    parser.add_argument("--chunks-per-answer", type=float, default=500)
    options = parser.parse_args()
    scale = json.loads((RESULTS / "scale.json").read_text())
    judge = json.loads((RESULTS / "scale_judge.json").read_text())[-1]
    control = json.loads((RESULTS / "scale_control.json").read_text())
    chunks = options.nodes * options.streams * options.chunks_per_s
    answers = chunks / options.chunks_per_answer
    print("| what | in the whole cluster |\n|---|---|")
    print(f"| chunks a second | {chunks:,.0f} |\n| answers a second | {answers:,.0f} |")
    cores = {}
    for role, (request_ms, chunk_us) in costs(scale).items():
        cores[role] = answers * request_ms / 1000 + chunks * chunk_us / 1e6
        print(f"| {role}: {request_ms:.2f} ms a request, {chunk_us:.1f} µs a chunk | {cores[role]:.1f} cores |")
    replicas = max(math.ceil(cores["gateway"] / _FULL), options.nodes)
    print(f"| gateway replicas at {_FULL:.0%} of a core, at least one a node | {replicas} |")
    for role in ("controller", "GCS"):
        alone, gateway, engine = idle_costs(control, role)
        total = alone + replicas * gateway + options.nodes * engine
        told = f"{alone:.0f} ms a second, {gateway:.1f} more for each gateway replica, {engine:.1f} for each engine"
        print(f"| {role}: {told} | {total / 1000:.2f} cores |")
    call_ms = idle_costs(control, "judge")[1]  # of a report without cells: what Ray takes for a call of an actor
    report_ms = call_ms + judge["judge_cpu_ms"]
    print(f"| shared judge, {replicas} reports a second of {judge['cells']} cells at {report_ms:.2f} ms | "
          f"{replicas / _PERIOD_S * report_ms / 1000:.2f} cores |")  # fmt: skip
    print(f"| gateway replicas at which the judge's core is full | {_PERIOD_S * 1000 / report_ms:,.0f} |")
    print(f"| health checks of all HAProxies | {options.nodes * replicas / _CHECK_S:,.0f} a second |")


if __name__ == "__main__":
    main()
