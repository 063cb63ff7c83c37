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
from serve.quarantine.detector import Detector, OutcomeCount, Terms, TrialCount
from serve.quarantine.messages import CountReport

RESULTS = Path(__file__).parents[1] / "results" / "scale_detector.json"


TERMS = Terms(references={f"model-{n}": "standard" for n in range(4)})


def report(replica: int, number: int, cells: int) -> CountReport:
    """Returns one replica's counts for a second: a few answers in every cell."""
    names = [Cell(f"model-{n % 4}", f"pool-{n % 3}", n % 2 == 0, f"class-{n}") for n in range(cells)]
    kinds = ("own_good", "own_bad", "reference_good")
    return CountReport(
        f"replica-{replica}",
        number,
        tuple(OutcomeCount(cell, "clean", 5) for cell in names),
        tuple(TrialCount(cell, 0.98, kind, 2 if kind == "own_good" else 1, False) for cell in names for kind in kinds),
    )


def measure(cells: int, reports: int) -> dict[str, float]:
    """Measure the detector's CPU per report, in milliseconds, with this number of cells."""
    earlier = Detector(TERMS)
    first = report(0, 1, cells)
    earlier.absorb(first.counts, time.time(), first.trials)
    actor = QuarantineActor()
    actor.seed(earlier.as_dict())
    pickled = [pickle.dumps(report(n % 100, n + 1, cells)) for n in range(reports)]
    state = b""
    began = time.process_time()
    for message in pickled:
        state = pickle.dumps(actor.sync(pickle.loads(message), TERMS))
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
