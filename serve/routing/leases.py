"""Slots on replicas that go from one request to the next: to reserve one costs two calls to the replica (ADR 0021)."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from serve.routing.endpoint import Endpoint

log = logging.getLogger("ray.serve.specgate.leases")


IDLE_S = 0.5  # for others wait for what lies idle here


AGE_S = 5.0  # for a replica that is to go, or to have less, is not told to us


@dataclass(eq=False, slots=True)
class Lease:
    """A reserved slot.

    Attributes:
        endpoint: Whose slot it is.
        release: Gives it back to the replica.
        until: When it is to be given back, by the event loop's clock.
    """

    endpoint: Endpoint
    release: Callable[[], Awaitable[object]]
    until: float = field(init=False)
    expiry: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.until = asyncio.get_running_loop().time() + AGE_S

    def stop_clock(self) -> None:
        """It does not lie idle any more."""
        if self.expiry is not None:
            self.expiry.cancel()


class Leases:
    """The slots that one gateway replica holds of one pool.

    A request takes over a slot that lies idle, or waits for a new one or for one that another request is done with,
    whichever is there first.

    Args:
        idle_s: How long a slot without a request is kept; 0: not at all, and no request gets the slot of another.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._all: set[Lease] = set()
        self._idle: list[Lease] = []
        self._waiters: deque[asyncio.Future[Lease]] = deque()
        self._releasing: set[asyncio.Future[object]] = set()

    @asynccontextmanager
    async def hold(self, reserve: Callable[[], Coroutine[Any, Any, Lease]]) -> AsyncIterator[Endpoint]:
        """Hold a slot for as long as the context lasts.

        Args:
            reserve: Gets a new one, or raises why it can't.
        """
        lease = self._taken() or await self._first(reserve)
        try:
            yield lease.endpoint
        except BaseException:
            self._release(lease)  # the replica may be at work on what was given up
            raise
        self._pass_on(lease)

    def forget(self, endpoint: Endpoint) -> None:
        """A replica did not answer: the next requests ask anew who is there."""
        for lease in self._all:
            if lease.endpoint.url == endpoint.url:
                lease.until = 0.0
        for lease in [each for each in self._idle if not each.until]:
            self._expire(lease)

    async def close(self) -> None:
        """Give back what lies idle."""
        for lease in list(self._idle):
            self._expire(lease)
        await asyncio.gather(*self._releasing, return_exceptions=True)  # `_released` tells

    def _taken(self) -> Lease | None:
        if not self._idle:
            return None
        lease = self._idle.pop()
        lease.stop_clock()
        return lease

    async def _first(self, reserve: Callable[[], Coroutine[Any, Any, Lease]]) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        reserving = asyncio.create_task(reserve())
        reserving.add_done_callback(partial(self._reserved, waiter))
        if self._idle_s:
            self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())  # it came in the moment in which nobody wanted it any more
            raise
        finally:
            reserving.cancel()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _reserved(self, waiter: asyncio.Future[Lease], reserving: asyncio.Task[Lease]) -> None:
        if reserving.cancelled():
            return
        if (error := reserving.exception()) is not None:
            if not waiter.done():
                waiter.set_exception(error)
            return
        lease = reserving.result()
        self._all.add(lease)
        if waiter.done():
            self._pass_on(lease)
        else:
            waiter.set_result(lease)

    def _pass_on(self, lease: Lease) -> None:
        """To the request that waits longest, or to the next one."""
        loop = asyncio.get_running_loop()
        left_s = min(self._idle_s, lease.until - loop.time())
        waiter = next((each for each in self._waiters if not each.done()), None)
        if left_s <= 0:
            self._release(lease)
        elif waiter is not None:
            waiter.set_result(lease)
        else:
            lease.expiry = loop.call_later(left_s, self._expire, lease)
            self._idle.append(lease)

    def _expire(self, lease: Lease) -> None:
        lease.stop_clock()
        self._idle.remove(lease)
        self._release(lease)

    def _release(self, lease: Lease) -> None:
        """Give it back, without anybody waiting for it."""
        self._all.discard(lease)
        task = asyncio.ensure_future(lease.release())
        self._releasing.add(task)
        task.add_done_callback(self._released)

    def _released(self, task: asyncio.Future[object]) -> None:
        self._releasing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a slot could not be given back", exc_info=error)
