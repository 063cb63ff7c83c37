"""CPU per report of the detector that all gateway replicas share: `python -m bench.scale.detector`.

Each gateway replica reports its counts once a second and gets the whole state back (`serve/quarantine/actor.py`). This
measures the detector's own work and the pickling of report and state, in this process; the overhead of a Ray actor call
is not included.
"""

import argparse
import json
import pickle
import time
from pathlib import Path

from policies import Cell
from serve.quarantine.actor import QuarantineActor
from serve.quarantine.detector import Quarantine, Tally, Terms
from serve.quarantine.judge import Report

RESULTS = Path(__file__).parents[1] / "results" / "scale_detector.json"


def tallies(cells: int) -> tuple[Tally, ...]:
    """Returns one replica's counts for a second: a few answers in every cell."""
    names = (Cell(f"model-{n % 4}", f"pool-{n % 3}", n % 2 == 0, f"class-{n}") for n in range(cells))
    return tuple(Tally(cell, "clean", 5, False) for cell in names)


def measure(cells: int, reports: int) -> dict[str, float]:
    """Measure the detector's CPU per report, in milliseconds, with this number of cells."""
    earlier = Quarantine(Terms())
    earlier.absorb(tallies(cells), time.time())
    actor = QuarantineActor()
    actor.seed(earlier.as_dict())
    pickled = [pickle.dumps(Report(f"replica-{n % 100}", n + 1, tallies(cells))) for n in range(reports)]
    state = b""
    began = time.process_time()
    for report in pickled:
        state = pickle.dumps(actor.sync(pickle.loads(report), Terms()))
    used = time.process_time() - began
    return {"cells": cells, "detector_cpu_ms": round(used / reports * 1000, 3), "state_bytes": len(state)}


def main() -> None:
    """Measure with few and with many cells, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="8,48", help="numbers of cells (model, pool, speculation, request class)")
    parser.add_argument("--reports", type=int, default=1000)
    options = parser.parse_args()
    rows = [measure(int(cells), options.reports) for cells in options.cells.split(",")]
    for row in rows:
        print(json.dumps(row))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
