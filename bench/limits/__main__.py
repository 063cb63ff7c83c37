"""How well limits and fair shares hold over replicas, and what limits cost: `python -m bench.limits`.

The parts `held` and `fairness` run in virtual time: their figures depend on the seeds alone. `costs` is CPU time of
this machine. `usage` sends requests over HTTP, and compares with what simulated engines have counted themselves.
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

from bench.limits import fairness
from bench.limits.cost import chunk_us, request_us
from bench.limits.counters import counted
from bench.limits.simulation import BURST_S, TOKENS_PER_MINUTE, Outcome, Setting, play
from serve.config.rate_limits import Limits

RESULTS = Path(__file__).parents[1] / "results" / "limits.json"
_RATE = TOKENS_PER_MINUTE / 60
_CAPACITY = _RATE * BURST_S
_DEAD = (120.0, 180.0)
_PLENTY = Limits(requests_per_minute=10**9, tokens_per_minute=10**11)
_MOVES_S = 120.0
_REQUESTS = 420
_TRAFFIC: dict[str, dict[str, Any]] = {
    "everybody stays": {},
    "one in ten leaves": {"leaving": True},
    "one answer in ten is broken": {"faulty": 0.1},
}
SETTINGS = {
    **{f"strict, {number} replicas": Setting("strict", number) for number in (1, 2, 4)},
    **{f"expected, {number} replicas": Setting("expected", number) for number in (1, 2, 4)},
    "all load moves to one of 4": Setting("expected", 4, _MOVES_S, duration_s=_MOVES_S + 62),
    "ledger dead for 60 s": Setting("expected", 4, duration_s=300, dead=_DEAD),
    "ledger dead for 60 s, load on one of 4": Setting("expected", 4, 60.0, duration_s=300, dead=_DEAD),
}


def main() -> None:
    """Plays what was chosen, prints tables and saves the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--no-save", action="store_true", help=f"do not write {RESULTS.name}")
    arguments.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="what to play")
    chosen = arguments.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in chosen.part:
        results[part] = PARTS[part]()
        _print(results[part])
    if not chosen.no_save:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def held() -> list[dict[str, Any]]:
    """Returns how well limits hold."""
    return [row(name, setting, play(setting)) for name, setting in SETTINGS.items()]


def costs() -> list[dict[str, Any]]:
    """Returns what limits cost."""
    figures = {
        "usage alone, us an answer": asyncio.run(request_us(None)),
        "three scopes with two limits each, us an answer": asyncio.run(request_us(_PLENTY)),
        "us a chunk": chunk_us(),
    }
    return [{"cost": name, "measured": round(figure, 2)} for name, figure in figures.items()]


def usage() -> list[dict[str, Any]]:
    """Returns usage beside the engines' own counters."""
    return [{"traffic": name, **asyncio.run(counted(_REQUESTS, **how))} for name, how in _TRAFFIC.items()]


PARTS = {"held": held, "costs": costs, "usage": usage, "fairness": fairness.rows}


def row(name: str, setting: Setting, outcome: Outcome) -> dict[str, Any]:
    """Returns the figures of one run.

    The time in question is that without the ledger, or from two seconds after the clients have moved; otherwise all
    but the first minute, which has the burst. What counts there is what was admitted in that time: of the rest, some
    three seconds of the rate are under way at either end, which is more than anybody wants to see here.
    """
    seconds = setting.duration_s
    begun_s, ended_s = setting.dead or ((60.0 if math.isinf(setting.moves_s) else setting.moves_s + 2), seconds)
    within = [cost for at_s, cost in outcome.used if begun_s <= at_s < ended_s]
    return {
        "setting": name,
        "reserve over the bound": round(outcome.most_over, 3),
        "settled to rate x time + burst": round(_sum(outcome.settled) / (_RATE * seconds + _CAPACITY), 4),
        "worst minute to rate x minute + burst": round(_worst_minute(outcome.settled, seconds), 4),
        "admitted to rate x time, in the time in question": round(sum(within) / (_RATE * (ended_s - begun_s)), 4),
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
