"""Long work in slices, between which other requests have their turn; and what is long."""

import asyncio
from collections.abc import Generator
from time import monotonic
from typing import TypeVar

from serve.guard.core import at_once
from serve.http1.turns import turn

LONG_BYTES = 64 * 1024  # of a whole answer, of which a single step can take more than some milliseconds
LONG_HELD_BYTES = 128 * 1024  # of a stream, waiting for a check; each read of more is a trip to a thread
LONG_RAW_BYTES = 512 * 1024  # of requests and streams, in which little is what has to be looked at closely
_SLICE_S = 0.004

T = TypeVar("T")


async def in_slices(steps: Generator[None, None, T], *, aside: bool = False) -> T:
    """Runs a generator, which yields wherever it may pause, and returns its result; other tasks run after every few
    milliseconds. It runs aside, in a thread, if a step itself may be long.
    """
    if aside:
        return await asyncio.to_thread(at_once, steps)
    until = monotonic() + _SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if monotonic() > until:
            await turn()
            until = monotonic() + _SLICE_S
