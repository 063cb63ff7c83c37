"""Measures every arm under every load, as ratios to the oracle: `python -m bench.goodput`.

Everything runs in virtual time: the figures depend on the seeds alone, not on the machine.
"""

import argparse
import json
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goodput.arms import ARMS
from bench.goodput.simulation import Outcome, Setting, play
from bench.goodput.traffic import LOADS, Load

RESULTS = Path(__file__).parents[1] / "results" / "goodput.json"
ORACLES = ("oracle", "faithful oracle")
STATIC = ("speculative first", "standard only")
SETTINGS = {
    "2 x 25 seats": Setting(replicas=1, seats=25),
    "2 x 256 seats": Setting(replicas=1, seats=256, duration_s=60.0),
    "8 x 64 seats": Setting(replicas=4, seats=64, duration_s=60.0),
}


def main() -> None:
    """Plays everything and prints a table for each cluster."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=3, help="runs of each load and arm")
    arguments.add_argument("--first-seed", type=int, default=1)
    arguments.add_argument("--quick", action="store_true", help="a quarter of the time, one seed")
    arguments.add_argument("--no-save", action="store_true", help=f"do not write {RESULTS.name}")
    chosen = arguments.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + (1 if chosen.quick else chosen.seeds))
    rows: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        length = Setting(
            setting.replicas, setting.seats, setting.drafts, setting.duration_s / (4 if chosen.quick else 1)
        )
        found = [row for load in LOADS for row in measured(name, load, length, seeds)]
        _print(name, found)
        rows += found
    if not (chosen.no_save or chosen.quick):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def measured(cluster: str, load: Load, setting: Setting, seeds: range) -> list[dict[str, Any]]:
    """Returns a row for each arm under one load: medians over the seeds.

    Args:
        cluster: Name of the cluster.
        load: The traffic.
        setting: The cluster.
        seeds: One run each; all arms see the same ones.
    """
    outcomes = {arm: [play(load, arm, seed, setting) for seed in seeds] for arm in ARMS}
    best = [max(outcomes[arm][run].tokens for arm in ORACLES) for run in range(len(seeds))]
    return [
        {"cluster": cluster, "load": load.name, "arm": arm, **_figures(runs, best, setting)}
        for arm, runs in outcomes.items()
    ]


def _figures(runs: list[Outcome], best: list[int], setting: Setting) -> dict[str, Any]:
    gpus_s = 2 * setting.replicas * setting.duration_s
    first = [_percentiles(run.first_s) for run in runs]
    per_token = [_percentiles(run.per_token_s) for run in runs]
    return {
        "of_oracle": round(median(run.tokens / most for run, most in zip(runs, best, strict=True)), 3),
        "tokens_per_s": round(median(run.tokens for run in runs) / setting.duration_s),
        "calls_per_s": round(median(run.calls for run in runs) / setting.duration_s, 2),
        "engine_s_per_call": round(gpus_s / max(1, median(run.calls for run in runs)), 4),
        "ttft_p50_ms": round(median(each[0] for each in first) * 1e3, 1),
        "ttft_p99_ms": round(median(each[1] for each in first) * 1e3, 1),
        "tpot_p50_ms": round(median(each[0] for each in per_token) * 1e3, 2),
        "tpot_p99_ms": round(median(each[1] for each in per_token) * 1e3, 2),
        "prefix_hits": round(median(run.hit_rate for run in runs), 3),
    }


def _percentiles(values: list[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile."""
    cuts = quantiles(values, n=100)
    return cuts[49], cuts[98]


def _print(cluster: str, rows: list[dict[str, Any]]) -> None:
    table = Table("load", *ARMS, title=f"{cluster}: tokens per second, of the oracle's", title_justify="left")
    for load in LOADS:
        shares = {row["arm"]: row["of_oracle"] for row in rows if row["load"] == load.name}
        table.add_row(load.name, *(f"{shares[arm]:.3f}" for arm in ARMS))
    Console(width=140).print(table)
    ours = {row["load"]: row["of_oracle"] for row in rows if row["arm"] == "load ranking"}
    static = {
        load: max(row["of_oracle"] for row in rows if row["load"] == load and row["arm"] in STATIC) for load in ours
    }
    worst = min(ours, key=lambda load: ours[load])
    beside = min(ours, key=lambda load: ours[load] / static[load])
    Console().print(
        f"load ranking: at least {ours[worst]:.3f} of the oracle ({worst}); "
        f"at least {ours[beside] / static[beside]:.3f} of the better static arm ({beside})"
    )


if __name__ == "__main__":
    main()
