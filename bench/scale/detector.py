"""CPU per report of the detector that all gateway replicas share: `python -m bench.scale.detector`.

Each gateway replica reports its counts once a second and gets the whole state back
(`serve/quarantine/shared_detector.py`). This measures the detector's own work and the pickling of report and state, in
this process; the overhead of a Ray actor call is not included.
"""

import argparse
import asyncio
import json
import pickle
import time
from pathlib import Path

from policies import Cell
from serve.quarantine.detector import Counts, DetectorState, DetectorTerms, OutcomeCount, TrialCount
from serve.quarantine.shared_detector import QuarantineActor
from serve.shared.report import Report

RESULTS = Path(__file__).parents[1] / "results" / "scale_detector.json"


TERMS = DetectorTerms(references={f"model-{n}": "standard" for n in range(4)})


def report(replica: int, number: int, cells: int) -> Report[Counts, DetectorState]:
    """Returns one replica's counts for a second: a few answers in every cell."""
    names = [Cell(f"model-{n % 4}", f"pool-{n % 3}", n % 2 == 0, f"class-{n}") for n in range(cells)]
    kinds = ("own_good", "own_bad", "reference_good")
    outcomes = tuple(OutcomeCount(cell, "clean", 5) for cell in names)
    trials = tuple(
        TrialCount(cell, 0.98, kind, 2 if kind == "own_good" else 1, False) for cell in names for kind in kinds
    )
    return Report(f"replica-{replica}", number, Counts(outcomes, trials, TERMS))


def measure(cells: int, reports: int) -> dict[str, float]:
    """Measure the detector's CPU per report, in milliseconds, with this number of cells."""
    actor = QuarantineActor()
    pickled = [pickle.dumps(report(n % 100, n // 100 + 1, cells)) for n in range(reports)]

    async def answers() -> bytes:
        state = b""
        for message in pickled:
            state = pickle.dumps(await actor.take(pickle.loads(message)))
        return state

    asyncio.run(actor.take(report(0, 0, cells)))
    began = time.process_time()
    state = asyncio.run(answers())
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
