"""Estimates the cores that the gateway of a whole cluster needs: `python -m bench.scale.plan`.

Extrapolates from the results of `bench.scale`, `bench.scale.control` and `bench.scale.detector`. The cost of a chunk is
taken from paced streams (one frame per read, the most expensive case), the cost of a request from short whole answers.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from bench.gateway.traffic import CHUNKS

RESULTS = Path(__file__).parents[1] / "results"
_REPORT_PERIOD_S = 1.0  # between two reports of a gateway replica to the detector
_HEALTH_CHECK_PERIOD_S = 5.0  # of a HAProxy and one gateway replica; Ray Serve's default
_TARGET_UTILIZATION = 0.6  # share of its core that a gateway replica, one event loop, should use


def costs(scale: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns (milliseconds per request, microseconds per chunk) by role."""
    rows = {row["cell"]: row["cpu_ms"] for row in scale if row["gateways"] == 1}
    by_role = {}
    for role in ("gateway", "HAProxy"):
        request_ms = rows["short@64"][role]
        by_role[role] = (request_ms, max(rows["paced@16"][role] - request_ms, 0.0) / CHUNKS * 1000)
    return by_role


def idle_costs(control: list[dict[str, Any]], role: str) -> tuple[float, float, float]:
    """Returns a role's CPU in ms/s: with one gateway replica, per additional gateway replica, per additional engine.

    Assumes that cost grows linearly beyond the clusters of `bench.scale.control`; that was not measured.
    """
    rows = {(row["gateways"], row["pools"]): row["cpu_ms_a_second"][role] for row in control if row["load"] == "idle"}
    alone = rows[1, 0]
    gateways = max(count for count, _ in rows)
    engines = max(count for _, count in rows)
    per_gateway = (rows[gateways, 0] - alone) / (gateways - 1)
    per_engine = (rows[1, engines] - alone) / engines
    return alone, max(per_gateway, 0.0), max(per_engine, 0.0)


def main() -> None:
    """Print the plan as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="nodes, with one engine replica each")
    parser.add_argument("--streams", type=int, default=64, help="concurrent streams per node")
    parser.add_argument("--chunks-per-s", type=float, default=30, help="chunks per second of one stream")
    parser.add_argument("--chunks-per-answer", type=float, default=500)
    options = parser.parse_args()
    scale = json.loads((RESULTS / "scale.json").read_text())
    detector = json.loads((RESULTS / "scale_detector.json").read_text())[-1]
    control = json.loads((RESULTS / "scale_control.json").read_text())
    chunks = options.nodes * options.streams * options.chunks_per_s
    answers = chunks / options.chunks_per_answer
    print("| what | in the whole cluster |\n|---|---|")
    print(f"| chunks per second | {chunks:,.0f} |\n| answers per second | {answers:,.0f} |")
    cores = {}
    for role, (request_ms, chunk_us) in costs(scale).items():
        cores[role] = answers * request_ms / 1000 + chunks * chunk_us / 1e6
        print(f"| {role}: {request_ms:.2f} ms per request, {chunk_us:.1f} µs per chunk | {cores[role]:.1f} cores |")
    replicas = max(math.ceil(cores["gateway"] / _TARGET_UTILIZATION), options.nodes)
    print(f"| gateway replicas at {_TARGET_UTILIZATION:.0%} of a core, at least one per node | {replicas} |")
    for role in ("controller", "GCS"):
        alone, gateway, engine = idle_costs(control, role)
        total = alone + replicas * gateway + options.nodes * engine
        parts = f"{alone:.0f} ms/s, plus {gateway:.1f} per gateway replica and {engine:.1f} per engine"
        print(f"| {role}: {parts} | {total / 1000:.2f} cores |")
    call_ms = idle_costs(control, "detector")[1]  # a report without cells: the bare cost of a Ray actor call
    report_ms = call_ms + detector["detector_cpu_ms"]
    print(f"| shared detector, {replicas} reports/s of {detector['cells']} cells at {report_ms:.2f} ms | "
          f"{replicas / _REPORT_PERIOD_S * report_ms / 1000:.2f} cores |")  # fmt: skip
    print(f"| gateway replicas that saturate the detector's core | {_REPORT_PERIOD_S * 1000 / report_ms:,.0f} |")
    checks_per_s = options.nodes * replicas / _HEALTH_CHECK_PERIOD_S
    print(f"| health checks of all HAProxies | {checks_per_s:,.0f} per second |")


if __name__ == "__main__":
    main()
