"""What the detector that all gateway replicas share costs per report: `python -m bench.scale_judge`.

Each gateway replica reports once a second what it counted and gets the whole state back (`serve/quarantine/actor.py`).
Measured is the detector's own work and the pickling of report and state, in this process; what Ray adds to a call of an
actor comes on top.
"""

import argparse
import json
import pickle
import time
from pathlib import Path

from policies import Cell
from serve.quarantine.actor import QuarantineActor
from serve.quarantine.detector import Detector, OutcomeCount, Terms
from serve.quarantine.messages import CountReport

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "scale_judge.json"


def counts(cells: int) -> tuple[OutcomeCount, ...]:
    """What one replica counted in a second: some answers of every cell."""
    named = (Cell(f"model-{n % 4}", f"pool-{n % 3}", n % 2 == 0, f"class-{n}") for n in range(cells))
    return tuple(OutcomeCount(cell, "clean", 5, False) for cell in named)


def measure(cells: int, reports: int) -> dict[str, float]:
    """Milliseconds of CPU a report, on the detector's side, with so many cells."""
    detector = Detector(Terms())
    detector.absorb(counts(cells), time.time())
    actor = QuarantineActor()
    actor.seed(detector.as_dict())
    sent = [pickle.dumps(CountReport(f"replica-{n % 100}", n + 1, counts(cells))) for n in range(reports)]
    answered = b""
    began = time.process_time()
    for report in sent:
        answered = pickle.dumps(actor.sync(pickle.loads(report), Terms()))
    used = time.process_time() - began
    return {"cells": cells, "judge_cpu_ms": round(used / reports * 1000, 3), "state_bytes": len(answered)}


def main() -> None:
    """Measure with few and with many cells; print and save."""
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
