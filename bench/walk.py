"""The files that a request crosses inside the gateway, as teams run it: `python -m bench.walk [--files]`.

Access control, usage and limits are on. Only files whose functions run count, and only after a warm-up, so that what is
compiled or remembered once per process does not. A thermometer, not a goal: a file that is split to please it is worse.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import policies
import serve
from bench.gateway import traffic
from bench.gateway.in_process_side import Loop, Side

_PACKAGES = tuple(Path(package.__path__[0]) for package in (serve, policies))
_WALKS = {"plain stream": "stream", "streamed tool call": "tools", "Messages with tools": "messages"}


async def walk(shape: str, arrangement: str) -> Counter[str]:
    """Returns how many calls of functions each file gets while one request is answered.

    Args:
        shape: Of the request, as `bench.gateway` knows it.
        arrangement: What the gateway does beside its work, as `bench.gateway.in_process` knows it.
    """
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    with tempfile.TemporaryDirectory() as folder:
        side = Side(arrangement, Path(folder), {})
        await side.report()
        client = await side.client(traffic.shapes()[shape])
        sys.setprofile(profile)
        try:
            await client.ask(1)
        finally:
            sys.setprofile(None)
    found: Counter[str] = Counter()
    for name, number in calls.items():
        path = Path(name)
        if any(path.is_relative_to(package) for package in _PACKAGES):
            found[str(path.relative_to(_PACKAGES[0].parent))] += number
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", action="store_true", help="print the files, with the calls of their functions")
    options.add_argument("--arrangement", default="limits", help="access, usage, one-limit or limits; empty for none")
    given = options.parse_args()
    for name, shape in _WALKS.items():
        with asyncio.Runner(loop_factory=lambda: Loop(1)) as runner:
            calls = runner.run(walk(shape, given.arrangement))
        lines = sum(len((_PACKAGES[0].parent / path).read_text().splitlines()) for path in calls)
        print(f"{name}: {len(calls)} files, {lines} lines, {calls.total()} calls")
        if given.files:
            for path, number in calls.most_common():
                print(f"  {number:5} {path}")


if __name__ == "__main__":
    main()
