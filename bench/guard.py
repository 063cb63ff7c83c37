"""Benchmark of the guard: broken calls at the client, CPU per chunk, hold-back, rerun cost, time to quarantine.

Simulated engines and the guard in one process, without HTTP: what is measured is the guard, not a network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.guard_measures import Correctness, measure_correctness, measure_cost, time_to_quarantine

RATES = (0.01, 0.10, 0.50)


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    made = Table(title=title)
    for name in rows[0]:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    return made


def plot(path: Path, results: Sequence[Correctness]) -> None:
    """Broken answers with and without the guard, by fault rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    labels = [f"{each.kind} {each.fault_rate:.0%}" for each in results]
    places = range(len(results))
    axes.bar([p - 0.2 for p in places], [each.wrong_unguarded for each in results], 0.4, label="without guard")
    axes.bar([p + 0.2 for p in places], [each.broken for each in results], 0.4, label="with guard")
    axes.set_xticks(list(places), labels)
    axes.set(
        xlabel="fault rate", ylabel=f"broken answers of {results[0].requests}", title="Broken tool calls at the client"
    )
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=5000, help="tool requests per fault rate")
    options.add_argument("--json", action="store_true", help="print JSON in place of tables")
    options.add_argument("--plot", type=Path, help="write a plot there")
    given = options.parse_args()
    correctness = [measure_correctness(kind, rate, given.requests) for kind in ("tools", "auto") for rate in RATES]
    costs = [measure_cost(kind, 100) for kind in ("text", "tools", "json")]
    waits = {rate: time_to_quarantine(rate, 20, 0.05) for rate in (0.5, 0.1)}
    quarantine = [
        {
            "fault_rate": rate,
            "runs": 20,
            "found": len(times),
            "median_answers": times[len(times) // 2],
            "most": times[-1],
        }
        for rate, times in waits.items()
    ]
    sections = {
        "correctness": [asdict(each) for each in correctness],
        "cpu_per_chunk": [asdict(each) for each in costs],
        "time_to_quarantine": quarantine,
    }
    if given.plot:
        plot(given.plot, correctness)
    if given.json:
        print(json.dumps(sections))
        return
    for title, rows in sections.items():
        Console(width=200).print(table(title, rows))


if __name__ == "__main__":
    main()
