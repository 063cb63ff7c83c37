"""Measures every arm as a ratio to the oracle: `python -m bench.goodput`.

Without `--traffic` it plays its own loads of closed-loop users. Everything runs in virtual time: the figures depend on
the seeds alone, not on the machine.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.goodput.loads import LOADS, Load, Users
from policies import Policy
from serve.config.gateway import GatewayConfig
from serve.live_policy import compile_for
from serve.tools.simulation.arms import ARMS, MakeArm, two_gateways
from serve.tools.simulation.figures import compared, figures
from serve.tools.simulation.oracle import ORACLES
from serve.tools.simulation.simulation import Outcome, play
from serve.tools.simulation.site import Site, default_config
from serve.tools.simulation.traffic import read_traffic

RESULTS = Path(__file__).parents[1] / "results" / "goodput.json"
STATIC = ("speculative_first", "standard_only")
_POLICIES: dict[bool, Policy] = {}  # compiling one takes longer than some runs
ALL_ARMS: Mapping[str, MakeArm] = {**ARMS, "two_gateways": two_gateways, **ORACLES}


class Cluster(NamedTuple):
    """The engines of a run, and its length.

    Attributes:
        replicas: Engines of each pool.
        seats: Sequences that each runs.
        duration_s: Virtual seconds.
    """

    replicas: int = 1
    seats: int = 256
    duration_s: float = 60.0


CLUSTERS = {
    "2 x 25 seats": Cluster(1, 25, 120.0),
    "2 x 256 seats": Cluster(1, 256),
    "8 x 64 seats": Cluster(4, 64),
}


def main() -> None:
    """Plays what is asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--traffic", type=Path, help="play this file instead of the loads")
    arguments.add_argument("--config", type=Path, help="the cluster for --traffic; its first model serves")
    arguments.add_argument("--json", action="store_true", help="with --traffic: print JSON instead of a table")
    arguments.add_argument("--seeds", type=int, default=3, help="runs of each load and arm")
    arguments.add_argument("--first-seed", type=int, default=1)
    arguments.add_argument("--quick", action="store_true", help="a quarter of the time, one seed")
    arguments.add_argument("--no-save", action="store_true", help=f"do not write {RESULTS.name}")
    chosen = arguments.parse_args()
    if chosen.traffic is None:
        _play_loads(range(chosen.first_seed, chosen.first_seed + (1 if chosen.quick else chosen.seeds)), chosen)
        return
    config = GatewayConfig.load(chosen.config) if chosen.config else default_config()
    with chosen.traffic.open("rb") as lines:
        report = compared(read_traffic(lines), config, chosen.first_seed)
    if chosen.json:
        print(json.dumps(report, indent=1))
    else:
        _print_traffic(report)


def _play_loads(seeds: range, chosen: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for name, cluster in CLUSTERS.items():
        shorter = cluster._replace(duration_s=cluster.duration_s / (4 if chosen.quick else 1))
        found = [row for load in LOADS for row in measured(name, load, shorter, seeds)]
        _print(name, found)
        rows += found
    if not (chosen.no_save or chosen.quick):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def measured(name: str, load: Load, cluster: Cluster, seeds: range) -> list[dict[str, Any]]:
    """Returns a row for each arm under one load: the run with the median ratio to the oracle.

    Args:
        name: The cluster's name.
        load: The traffic.
        cluster: The engines.
        seeds: One run each; all arms see the same ones.
    """
    outcomes = {arm: [play_load(load, make_arm, seed, cluster) for seed in seeds] for arm, make_arm in ALL_ARMS.items()}
    best = [max(outcomes[arm][run].tokens_per_s for arm in ORACLES) for run in range(len(seeds))]
    rows = []
    for arm, runs in outcomes.items():
        found = [figures(run, most) for run, most in zip(runs, best, strict=True)]
        middle = median([each["ratio_to_oracle"] for each in found])
        row = min(found, key=lambda each: abs(each["ratio_to_oracle"] - middle))
        rows.append({"cluster": name, "load": load.name, "arm": arm, **row})
    return rows


def play_load(load: Load, make_arm: MakeArm, seed: int, cluster: Cluster) -> Outcome:
    """Plays a load.

    Args:
        load: The traffic.
        make_arm: The arm.
        seed: Of all random numbers.
        cluster: The engines.
    """
    config = default_config(
        cluster.replicas,
        cluster.seats,
        routing="sticky" if load.agents else "balanced",
        forbidden=["tools"] if load.forbidden else (),
    )
    policy = _POLICIES.get(load.forbidden) or _POLICIES.setdefault(load.forbidden, compile_for(config))
    users = Users(load, seed, 2 * cluster.replicas * cluster.seats, cluster.duration_s)
    site = Site(config, policy)
    return play(users, site, load.drafter(cluster.duration_s), make_arm, seed, cluster.duration_s)


def _print_traffic(report: Mapping[str, Any]) -> None:
    table = Table("arm", "tokens/s", "of the oracle", "TTFT p50 ms", "p99", "per token p50 ms", "p99", "prefix hits")
    for arm, row in {**report["arms"], "oracle": report["oracle"]}.items():
        spread = (row["ttft_ms"]["p50"], row["ttft_ms"]["p99"], row["tpot_ms"]["p50"], row["tpot_ms"]["p99"])
        table.add_row(
            arm, f"{row['tokens_per_s']:,.0f}", f"{row['ratio_to_oracle']:.3f}", *(f"{ms:,.1f}" for ms in spread),
            f"{row['prefix_hit_rate']:.3f}",
        )  # fmt: skip
    Console(width=120).print(table)


def _print(cluster: str, rows: list[dict[str, Any]]) -> None:
    table = Table("load", *ALL_ARMS, title=f"{cluster}: tokens per second, of the oracle's", title_justify="left")
    for load in LOADS:
        shares = {row["arm"]: row["ratio_to_oracle"] for row in rows if row["load"] == load.name}
        table.add_row(load.name, *(f"{shares[arm]:.3f}" for arm in ALL_ARMS))
    Console(width=160).print(table)
    by_arm = {arm: {row["load"]: row["ratio_to_oracle"] for row in rows if row["arm"] == arm} for arm in ALL_ARMS}
    ours = by_arm["specgate"]
    static = {load: max(by_arm[arm][load] for arm in STATIC) for load in ours}
    worst = min(ours, key=lambda load: ours[load])
    beside = min(ours, key=lambda load: ours[load] / max(static[load], 1e-9))  # a short run may complete nothing
    Console().print(
        f"specgate: at least {ours[worst]:.3f} of the oracle ({worst}); "
        f"at least {ours[beside] / max(static[beside], 1e-9):.3f} of the better static arm ({beside})"
    )


if __name__ == "__main__":
    main()
