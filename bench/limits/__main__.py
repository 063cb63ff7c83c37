"""How well limits hold over replicas, and what they cost: `python -m bench.limits`.

The first part runs in virtual time: its figures depend on the seeds alone. The second is CPU time of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.limits.cost import chunk_us, request_us
from bench.limits.simulation import BURST_S, TOKENS_PER_MINUTE, Outcome, Setting, play
from serve.config.rate_limits import Limits

RESULTS = Path(__file__).parents[1] / "results" / "limits.json"
_RATE = TOKENS_PER_MINUTE / 60
_CAPACITY = _RATE * BURST_S
_DEAD = (120.0, 180.0)
_PLENTY = Limits(requests_per_minute=10**9, tokens_per_minute=10**11)
_MOVES_S = 120.0
SETTINGS = {
    **{f"strict, {number} replicas": Setting("strict", number) for number in (1, 2, 4)},
    **{f"expected, {number} replicas": Setting("expected", number) for number in (1, 2, 4)},
    "all load moves to one of 4": Setting("expected", 4, _MOVES_S, duration_s=_MOVES_S + 62),
    "ledger dead for 60 s": Setting("expected", 4, duration_s=300, dead=_DEAD),
    "ledger dead for 60 s, load on one of 4": Setting("expected", 4, 60.0, duration_s=300, dead=_DEAD),
}


def main() -> None:
    """Plays everything, prints tables and saves the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--no-save", action="store_true", help=f"do not write {RESULTS.name}")
    chosen = arguments.parse_args()
    held = [row(name, setting, asyncio.run(play(setting))) for name, setting in SETTINGS.items()]
    costs = {
        "usage alone, us an answer": asyncio.run(request_us(None)),
        "three scopes with two limits each, us an answer": asyncio.run(request_us(_PLENTY)),
        "us a chunk": chunk_us(),
    }
    _print(held)
    for name, figure in costs.items():
        Console().print(f"{name}: {figure:.2f}")
    if not chosen.no_save:
        RESULTS.write_text(json.dumps({"held": held, "costs": costs}, indent=1) + "\n")


def row(name: str, setting: Setting, outcome: Outcome) -> dict[str, Any]:
    """Returns the figures of one run.

    The time in question is that without the ledger, or from two seconds after the clients have moved; otherwise all
    but the first minute, which has the burst.
    """
    seconds = setting.duration_s
    begun_s, ended_s = setting.dead or ((60.0 if math.isinf(setting.moves_s) else setting.moves_s + 2), seconds)
    within = [cost for at_s, cost in outcome.settled if begun_s <= at_s < ended_s]
    return {
        "setting": name,
        "reserve over the bound": round(outcome.most_over, 3),
        "settled to rate x time + burst": round(_sum(outcome.settled) / (_RATE * seconds + _CAPACITY), 4),
        "worst minute to rate x minute + burst": round(_worst_minute(outcome.settled, seconds), 4),
        "settled to rate x time, in the time in question": round(sum(within) / (_RATE * (ended_s - begun_s)), 4),
        "answered": len(outcome.settled),
        "refused": outcome.refused,
    }


def _sum(costs: Sequence[tuple[float, float]]) -> float:
    return sum(cost for _, cost in costs)


def _worst_minute(settled: Sequence[tuple[float, float]], seconds: float) -> float:
    minutes = range(0, int(seconds) - 59)
    most = max(sum(cost for at_s, cost in settled if begun <= at_s < begun + 60) for begun in minutes[::5])
    return most / (_RATE * 60 + _CAPACITY)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(*rows[0])
    for each in rows:
        table.add_row(*map(str, each.values()))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
