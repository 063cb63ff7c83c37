"""What clients see of a fault."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.scene import COMPLETE, LONGEST_S, scene
from tests.faults.table import Fault


@dataclass
class Row:
    """What a fault did.

    Attributes:
        ends: How the requests ended that met it.
        longest_s: That one of them took.
        back_s: From the fault's end to the first complete answer.
        notes: What else was seen.
        wrong: What no client should have seen.
    """

    ends: Counter[str]
    longest_s: float
    back_s: float
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def observe(fault: Fault, folder: Path) -> Row:
    """Causes a fault under load; returns what clients saw.

    Args:
        fault: The fault.
        folder: For the gateway's files.
    """
    notes: list[str] = []
    async with fault.setting(folder) as setting, scene(folder, setting) as one:
        began_s = time.monotonic()
        async with fault.inject(one, notes):
            await asyncio.sleep(fault.hold_s)
            over_s = time.monotonic()
        back_s = await one.clients.until_well(over_s)
        met = [each for each in one.clients.seen if each.ended_s >= began_s and each.began_s <= over_s]
        log = one.log
    ends = Counter(each.end for each in met)
    wrong = [f"{count} times {end}" for end, count in ends.items() if end not in fault.may | {COMPLETE}]
    longest_s = max(each.ended_s - each.began_s for each in met)
    if longest_s >= LONGEST_S:
        wrong.append(f"a request took {longest_s:.1f} s")
    if "Traceback" in log:
        wrong.append(f"the gateway's log has a traceback:\n{log[-3000:]}")
    return Row(ends, longest_s, back_s, notes, wrong)
