"""CPU of the gateway's own Python for an answer, without sockets: `python -m bench.gateway.in_process [--before DIR]`.

One process holds a gateway replica, its client and its engine; each is handed what the other sends, as an event loop
would. Two sides, or all cells, take turns of some milliseconds, and each turn is compared with its neighbour. So the
machine's other work cancels out, which in `bench.gateway`, which measures whole processes, makes ten per cent.

What does not cancel out is chosen when a process starts: the seed of its hashes and where its memory lies decide which
data share a cache line, and make one launch of the same code up to 8 % dearer than the next. So the sides start anew
for every few turns (`--launches`), and what is told is the median of the launches' ratios, with 95 % bounds.

The sides are two checkouts or, with `--limits`, this one with more and more of access control, usage and limits, or,
with `--live`, with arguments of calls that go out while they grow. A cell whose name ends in `+` and the name of such
an arrangement, as in `short+limits` or `tools+live`, has it in either case.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.gateway import traffic
from bench.gateway.in_process_side import ARRANGEMENTS, HEADERS, run

_CELLS = "short,stream,tools-text,messages-text,responses-text,tools,messages,responses"
_CHECKOUT = Path(__file__).resolve().parents[2]
_SIDE = _CHECKOUT / "bench/gateway/in_process_side.py"


@contextlib.contextmanager
def side(checkout: Path, frames: int, telemetry: str = "{}") -> Iterator[Callable[[str], float]]:
    """Runs the gateway of a checkout; yields what measures one turn of a cell in it, in microseconds an answer."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", str(_SIDE), "--frames", str(frames), "--telemetry", telemetry]
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def turn(cell: str) -> float:
            print(cell, file=orders, flush=True)
            return float(answers.readline())

        yield turn
        orders.close()


def compare(before: Path, cells: list[str], launches: int, turns: int, frames: int, telemetry: str) -> None:
    """Prints a line a cell: microseconds an answer, now and before, and their ratio.

    Args:
        before: The other checkout.
        cells: Names of shapes of requests.
        launches: Of each checkout.
        turns: Of each checkout in each cell, shared among the launches.
        frames: Of a stream, that arrive in one read.
        telemetry: The `telemetry` section of this checkout's configuration, as JSON.
    """
    launched: dict[str, list[_Launch]] = {cell: [] for cell in cells}
    for _ in range(launches):
        with side(_CHECKOUT, frames, telemetry) as now, side(before.resolve(), frames) as then:
            for cell, pairs in launched.items():
                pairs.append(_take_turns(turns // launches, partial(now, cell), partial(then, cell)))
    for cell, pairs in launched.items():
        _show(cell, "now", "before", pairs)


def compare_arrangements(
    cells: list[str], launches: int, turns: int, frames: int, arrangements: Collection[str]
) -> None:
    """Prints a line a cell and arrangement as `compare`: with it, and without any; see there."""
    launched: dict[tuple[str, str], list[_Launch]] = {(cell, each): [] for cell in cells for each in arrangements}
    for _ in range(launches):
        with side(_CHECKOUT, frames) as turn:
            for (cell, arrangement), pairs in launched.items():
                one, other = partial(turn, f"{cell}+{arrangement}"), partial(turn, cell)
                pairs.append(_take_turns(turns // launches, one, other))
    for (cell, arrangement), pairs in launched.items():
        _show(cell, arrangement, "without", pairs)


_Launch = list[tuple[float, float]]  # microseconds an answer of one side and the other, in neighbouring turns


def _take_turns(turns: int, one: Callable[[], float], other: Callable[[], float]) -> _Launch:
    one(), other()  # warm up
    return [(one(), other()) for _ in range(max(1, turns))]


def _show(cell: str, one: str, other: str, launches: list[_Launch]) -> None:
    ours, theirs = zip(*[pair for launch in launches for pair in launch], strict=True)
    more = median(one - other for one, other in zip(ours, theirs, strict=True))
    low, ratio, high = bounds([_ratio(*zip(*launch, strict=True)) for launch in launches])
    print(
        f"{cell}: {one} {min(ours):.0f} us, {other} {min(theirs):.0f} us, "
        f"ratio {ratio:.3f} ({low:.3f} to {high:.3f}), difference {more:.1f} us",
        flush=True,
    )


def bounds(figures: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median between its 95 % bounds, which are two of the figures; the outermost of fewer than eight."""
    inner = max(0, math.floor(len(figures) / 2 - 0.98 * math.sqrt(len(figures))))
    in_order = sorted(figures)
    return in_order[inner], median(in_order), in_order[-1 - inner]


def measure(cells: list[str], turns: int, frames: int) -> None:
    """Prints a line a cell: microseconds an answer, and their ratio to the same answer as chat.

    Args:
        cells: Names of shapes of requests.
        turns: Of each cell.
        frames: Of a stream, that arrive in one read.
    """
    with side(_CHECKOUT, frames) as turn:
        rounds = [{cell: turn(cell) for cell in cells} for _ in range(turns)]
    costs = {cell: [each[cell] for each in rounds] for cell in cells}
    for cell, cost in costs.items():
        twin = traffic.shapes()[cell].twin
        ratio = f", {_ratio(cost, costs[twin]):.3f} of {twin}" if twin in costs else ""
        print(f"{cell}: {min(cost):.0f} us{ratio}", flush=True)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median ratio of neighbouring turns."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--before", type=Path, metavar="DIR", help="the other checkout")
    options.add_argument(
        "--limits", action="store_true", help="compare with and without access control, usage and limits"
    )
    options.add_argument("--live", action="store_true", help="compare with and without arguments that go out live")
    options.add_argument("--cells", default=_CELLS, help=f"comma-separated, of: {','.join(traffic.shapes())}")
    options.add_argument("--turns", type=int, default=60, help="of each side in each cell, in all launches together")
    options.add_argument("--launches", type=int, default=12, help="of each side of a comparison")
    options.add_argument("--frames", type=int, default=1, help="of a stream, that arrive in one read")
    options.add_argument("--telemetry", default="{}", metavar="JSON", help="that section of this checkout's config")
    options.add_argument("--profile", action="store_true", help="print where the cells' time goes instead")
    given = options.parse_args()
    cells = given.cells.split(",")
    if given.before:
        compare(given.before, cells, given.launches, given.turns, given.frames, given.telemetry)
        return
    if given.limits or given.live:
        arrangements = ARRANGEMENTS if given.limits else HEADERS
        compare_arrangements(cells, given.launches, given.turns, given.frames, arrangements)
        return
    if given.profile:
        run(cells, given.frames, given.telemetry, profile=True)
        return
    measure(cells, given.turns, given.frames)


if __name__ == "__main__":
    main()
