"""Long work, such that other requests have their turn: in slices, or beside the event loop."""

import asyncio
from collections.abc import Generator
from time import monotonic
from typing import TypeVar

from serve.guard.core import at_once

LONG_BYTES = 512 * 1024  # in which a single step can take more than some milliseconds
_SLICE_S = 0.004

T = TypeVar("T")


async def in_slices(steps: Generator[None, None, T], size_bytes: int = 0) -> T:
    """Runs a generator to its end and returns its result; other tasks run after every few milliseconds.

    Args:
        steps: The work; it yields wherever it may pause.
        size_bytes: Of what it works on. From `LONG_BYTES` on it runs in a thread, because a step itself may be long.
    """
    if size_bytes >= LONG_BYTES:
        return await asyncio.to_thread(at_once, steps)
    until = monotonic() + _SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if monotonic() > until:
            await asyncio.sleep(0)
            until = monotonic() + _SLICE_S
