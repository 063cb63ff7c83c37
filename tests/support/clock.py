"""Waiting for what happens instead of for a time, and an event loop's clock that tests put forward."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_STEPS = 50  # longer than any chain of callbacks that a test waits for
_LIMIT_S = 60.0  # long enough for any machine; nothing waits for it unless a test fails

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never really waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


async def until(holds: Callable[[], object]) -> None:
    """Returns as soon as something holds that happens in code without an event to wait for."""
    async with asyncio.timeout(_LIMIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def settle() -> None:
    """Returns once all that can go on without time, sockets or threads has gone on."""
    for _ in range(_STEPS):
        await asyncio.sleep(0)


class ManualClock:
    """Seconds that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class LoopClock:
    """The running event loop's clock: it goes on as always, and jumps ahead by what it is told.

    For a loop of the test's own (the fixture `clock` makes one), because it never jumps back.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real = loop.time
        self._ahead_s = 0.0
        loop.time = lambda: self._real() + self._ahead_s  # type: ignore[method-assign]

    async def advance(self, by_s: float) -> None:
        """Puts the clock forward, and lets everything happen that is due then."""
        self._ahead_s += by_s
        await settle()

    @asynccontextmanager
    async def hurrying(self, by_s: float) -> AsyncIterator[None]:
        """Puts the clock forward again and again, for a wait whose end is a matter of time alone."""

        async def hurry() -> None:
            while True:
                await asyncio.sleep(0)
                await self.advance(by_s)

        task = asyncio.create_task(hurry())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
