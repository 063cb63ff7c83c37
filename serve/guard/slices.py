"""Runs long work in slices, so that other requests have their turn in between."""

import asyncio
from collections.abc import Generator
from time import monotonic
from typing import TypeVar

_SLICE_S = 0.004

T = TypeVar("T")


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Runs a generator to its end and returns its result; other tasks run after every few milliseconds.

    Args:
        steps: The work; it yields wherever it may pause.
    """
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
