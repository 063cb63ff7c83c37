"""Causes every fault of the table, and prints what clients saw: `make test-faults`."""

import argparse
import asyncio
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`

from tests.faults.needs import missing
from tests.faults.observing import Row, observe
from tests.faults.table import FAULTS


def line(name: str, row: Row, loses: str) -> str:
    ends = ", ".join(f"{number} {end}" for end, number in row.ends.most_common())
    notes = "".join(f"; {note}" for note in row.notes)
    return f"| {name} | {ends}{notes} | {row.longest_s:.1f} | {row.back_s:.1f} | {loses} |"


async def main(only: str) -> int:
    print("| fault | requests that met it | longest, s | back after, s | lost |\n|---|---|---|---|---|", flush=True)
    wrong = []
    for fault in FAULTS:
        if only not in fault.name:
            continue
        if lacking := missing(fault.needs):
            print(f"| {fault.name} | skipped: needs {', '.join(lacking)} | | | |", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="faults") as folder:
            try:
                row = await observe(fault, Path(folder))
            except Exception:  # noqa: BLE001 - the next ones are asked for as well
                wrong.append(f"{fault.name}: {traceback.format_exc()}")
                continue
        print(line(fault.name, row, fault.loses), flush=True)
        wrong += [f"{fault.name}: {each}" for each in row.wrong]
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--only", default="", help="part of the faults' names")
sys.exit(asyncio.run(main(parser.parse_args().only)))
