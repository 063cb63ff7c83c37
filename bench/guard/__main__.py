"""`python -m bench.guard`: broken calls at the client, latency, cost of reruns, time to quarantine and back."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from bench.guard import correctness, cpu, judging, latency, report

RATES = (0.01, 0.10, 0.50)


async def measure(requests: int, quick: bool) -> dict[str, Sequence[Any]]:
    """Every section, one after the other."""
    runs = range(1 if quick else 5)
    return {
        "correctness": await correctness.measure(RATES, requests),
        "latency": await latency.measure(40 if quick else 200),
        "quarantine": [
            *await judging.measure(0.5, runs, 2000, cure=not quick),
            *await judging.measure(0.1, runs[:3], 4000),
        ],
        "cpu_us_per_chunk": [cpu.measure(kind, 30 if quick else 100) for kind in cpu.KINDS],
    }


def main() -> None:
    """Run, print, and, in full, save figures and plot."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=5000, help="tool requests per fault rate")
    options.add_argument("--quick", action="store_true", help="fewer runs; nothing is saved")
    given = options.parse_args()
    sections = asyncio.run(measure(300 if given.quick else given.requests, given.quick))
    report.tables(sections)
    if not given.quick:
        report.save(sections)
        report.plot(sections)


if __name__ == "__main__":
    main()
