"""Long work, such that other requests have their turn: in slices, or beside the event loop."""

import asyncio
from collections.abc import Callable, Generator
from time import monotonic
from typing import ParamSpec, TypeVar

from serve.guard.core import at_once

LONG_BYTES = 64 * 1024  # of a whole answer, of which a single step can take more than some milliseconds
LONG_HELD_BYTES = 128 * 1024  # of a stream, waiting for a check; each read of more is a trip to a thread
LONG_RAW_BYTES = 512 * 1024  # of requests and streams, in which little is what has to be looked at closely
LONG_FRAME_BYTES = 8 * 1024  # a frame of so much may hold hundreds of calls
_SLICE_S = 0.004

T = TypeVar("T")
P = ParamSpec("P")


async def beside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns what a function returns; in a thread if it takes long.

    Args:
        is_long: Whether it may.
        work: The function.
        *args: Its arguments.
        **kwargs: Its arguments.
    """
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)


async def in_slices(steps: Generator[None, None, T], *, aside: bool = False) -> T:
    """Runs a generator to its end and returns its result; other tasks run after every few milliseconds.

    Args:
        steps: The work; it yields wherever it may pause.
        aside: Whether it runs in a thread, because a step itself may be long.
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
            await asyncio.sleep(0)
            until = monotonic() + _SLICE_S
