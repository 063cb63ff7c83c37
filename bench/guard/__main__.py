"""`python -m bench.guard`: broken calls at the client, latency, cost of reruns, time to quarantine and back."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bench.guard import correctness, cpu, detection, dialects, latency, report, resumes, unseen

RATES = (0.01, 0.10, 0.50)


def sections(
    requests: int, unseen_requests: int, quick: bool, rates: Sequence[float] = RATES, arguments: str = "held"
) -> dict[str, Callable[[], Awaitable[Sequence[Any]]]]:
    """The measurements by name, in the order of the report."""

    async def detected() -> Sequence[Any]:
        first = await detection.measure(0.5, 0, 2000, cure=not quick)
        others = [(0.5, seed, 2000) for seed in range(1, 5)] + [(0.1, seed, 4000) for seed in range(3)]
        return [first, *[await detection.measure(*each) for each in (others[-1:] if quick else others)]]

    async def cpu_time() -> Sequence[Any]:
        return [cpu.measure(kind, 30 if quick else 100) for kind in cpu.KINDS]

    async def random_tools() -> Sequence[Any]:
        return unseen.measure((0.0, 0.25, 0.5), unseen_requests)

    return {
        "correctness": partial(correctness.measure, rates, requests, arguments),
        "latency": partial(latency.measure, 40 if quick else 200),
        "quarantine": detected,
        "cpu_us_per_chunk": cpu_time,
        "unseen": random_tools,
        "dialects": partial(dialects.measure, 0.5, requests),
        "resumes": partial(resumes.measure, 50 if quick else 200),
    }


async def measure(wanted: Mapping[str, Callable[[], Awaitable[Sequence[Any]]]]) -> dict[str, Sequence[Any]]:
    """Every section, one after the other."""
    return {name: await section() for name, section in wanted.items()}


def main() -> None:
    """Run, print, and, in full, save figures and plot."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=5000, help="tool requests per fault rate")
    options.add_argument("--unseen", type=int, default=40, help="requests over random tool sets per row")
    options.add_argument("--quick", action="store_true", help="fewer runs; nothing is saved")
    options.add_argument("--only", action="append", help="a section; the others stay as they were saved")
    options.add_argument("--rates", default=",".join(map(str, RATES)), help="of broken answers, of `correctness`")
    options.add_argument("--arguments", default="held", help="live or auto, of `correctness`; nothing is saved")
    given = options.parse_args()
    rates = [*map(float, given.rates.split(","))]
    every = sections(300 if given.quick else given.requests, given.unseen, given.quick, rates, given.arguments)
    wanted = {name: every[name] for name in given.only or every}
    measured = report.plain(asyncio.run(measure(wanted)))
    report.tables(measured)
    if not given.quick and given.arguments == "held":
        together = report.saved() | measured
        report.save({name: together[name] for name in every if name in together})
        report.plot(together)


if __name__ == "__main__":
    main()
