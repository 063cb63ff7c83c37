"""Compares specgate with other gateways: a table, JSON and a plot: `python -m bench.gateway`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench import peers
from bench.gateway import report, runner, sides
from bench.gateway.runner import Results, Workload

_CELLS = (
    "short@1", "short@16", "short@64", "stream@1", "stream@16", "stream@64", "paced@16", "tools-text@16", "tools@16",
    "messages-text@16", "messages@16", "responses-text@16", "responses@16", "rerun@16", "long@16", "long-stream@16",
)  # fmt: skip
_QUICK = ("short@16", "stream@16", "paced@16", "tools-text@16", "tools@16", "rerun@16", "long-stream@16")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer cells and rounds: about three minutes")
    options.add_argument("--peers", help=f"comma-separated sides to compare: {', '.join(sides.NAMES)}")
    options.add_argument("--before", type=Path, metavar="DIR", help="another checkout of specgate, as one more side")
    options.add_argument("--cells", help=f"comma-separated cells, of: {','.join(_CELLS)}")
    options.add_argument("--rounds", type=int, help="turns of every side in every cell")
    options.add_argument("--seconds", type=float, help="length of one turn")
    options.add_argument("--out", type=Path, default=Path("bench/results/gateway.json"), help="JSON file to write")
    options.add_argument("--plot", type=Path, default=Path("docs/img/gateway.png"), help="plot to write")
    given = options.parse_args()
    wanted = given.peers.split(",") if given.peers else list(sides.NAMES)
    if unknown := set(wanted) - set(sides.NAMES):
        options.error(f"unknown sides {sorted(unknown)}; known: {', '.join(sides.NAMES)}")
    try:
        cells = [
            Workload.parse(name)
            for name in (given.cells.split(",") if given.cells else _QUICK if given.quick else _CELLS)
        ]
    except ValueError as error:
        options.error(str(error))
    rounds = given.rounds or (2 if given.quick else 3)
    seconds = given.seconds or (1.0 if given.quick else 1.5)
    more = [sides.before(given.before)] if given.before else []
    results = Results()
    peers.stop_when_told()
    try:
        runner.run(results, wanted, cells, rounds, seconds, lambda line: print(line, flush=True), more)
    finally:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({**results.to_dict(), "rounds": rounds, "seconds": seconds}, indent=1) + "\n")
        rows = report.summarize(results.measurements)
        print(report.markdown(rows, results.missing))
        report.plot(rows, given.plot)


if __name__ == "__main__":
    main()
