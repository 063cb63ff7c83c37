"""An event loop whose clock jumps from timer to timer, so that what waits for hours runs in seconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for its timeout but puts the clock forward by it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs coroutines in virtual time; nothing in them may wait for a socket, a thread or a process."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Returns virtual seconds since the start."""
        return self._clock.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end and returns its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
