"""Measures every arm as a ratio to the oracle: `python -m bench.goodput`.

Without `--traffic` it plays its own loads of closed-loop users. Everything runs in virtual time: the figures depend on
the seeds alone, not on the machine.
"""

import argparse
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goodput.claims import claims
from bench.goodput.loads import LOADS
from bench.goodput.report import ORACLE, RESULTS, print_table, save
from bench.goodput.runs import CLUSTERS, measured
from lab.simulation.figures import compared
from lab.simulation.site import default_config
from lab.simulation.traffic import lines_of, read_traffic
from policies import PolicyError
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError


def main() -> None:
    """Plays what is asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--traffic", type=Path, help="play this file instead of the loads")
    arguments.add_argument("--config", type=Path, help="the cluster for --traffic; its first model serves")
    arguments.add_argument("--speed", type=float, default=1.0, help="times faster than recorded that traces go")
    arguments.add_argument("--json", action="store_true", help="with --traffic: print JSON instead of a table")
    arguments.add_argument("--seeds", type=int, default=3, help="runs of each load and arm")
    arguments.add_argument("--first-seed", type=int, default=1)
    arguments.add_argument("--processes", type=int, default=2, help="runs that are played at the same time")
    arguments.add_argument("--quick", action="store_true", help="a quarter of the time, one seed")
    arguments.add_argument("--no-save", action="store_true", help=f"do not write {RESULTS.name}")
    chosen = arguments.parse_args()
    _hush()
    if chosen.traffic is None:
        _play_loads(range(chosen.first_seed, chosen.first_seed + (1 if chosen.quick else chosen.seeds)), chosen)
        return
    try:
        config = GatewayConfig.load(chosen.config) if chosen.config else default_config()
        traffic = read_traffic(lines_of(chosen.traffic), chosen.speed)
        report = compared(traffic, config, chosen.first_seed, chosen.processes)
    except (ConfigError, PolicyError, OSError) as error:
        arguments.exit(2, f"{arguments.prog}: {error}\n")
    if chosen.json:
        print(json.dumps(report, indent=1))
    else:
        _print_traffic(report)


def _hush() -> None:
    logging.getLogger("ray.serve.specgate.load").setLevel(logging.ERROR)  # simulated drafters may collapse


def _play_loads(seeds: range, chosen: argparse.Namespace) -> None:
    play = partial(measured, seeds=seeds, shorter=4.0 if chosen.quick else 1.0)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(chosen.processes, initializer=_hush) as pool:
        for found in pool.map(play, *zip(*product(CLUSTERS, (load.name for load in LOADS)), strict=True)):
            rows += found
            if found[0]["load"] == LOADS[-1].name:
                print_table([row for row in rows if row["cluster"] == found[0]["cluster"]])
                if not (chosen.no_save or chosen.quick):
                    save(rows)
    for claim in claims(rows):
        print(f"{'holds' if claim.met else 'FAILS'}: {claim.text}: {claim.worst:g} ({claim.where})")


def _print_traffic(report: Mapping[str, Any]) -> None:
    table = Table("arm", "tokens/s", "of the oracle", "TTFT p50 ms", "p99", "per token p50 ms", "p99", "prefix hits",
                  caption=ORACLE, caption_justify="left")  # fmt: skip
    for arm, row in {**report["arms"], "oracle": report["oracle"]}.items():
        spread = (row["ttft_ms"]["p50"], row["ttft_ms"]["p99"], row["tpot_ms"]["p50"], row["tpot_ms"]["p99"])
        table.add_row(
            arm, f"{row['tokens_per_s']:,.0f}", f"{row['ratio_to_oracle']:.3f}", *(f"{ms:,.1f}" for ms in spread),
            f"{row['prefix_hit_rate']:.3f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
