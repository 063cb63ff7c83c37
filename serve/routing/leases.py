"""Slots on replicas, reused from request to request: reserving one costs two calls to the replica (ADR 0021)."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from serve.routing.endpoint import Endpoint

log = logging.getLogger("ray.serve.specgate.routing")

IDLE_TIMEOUT_S = 0.5  # another gateway may be waiting for this slot
MAX_AGE_S = 5.0  # only a new reservation shows that a replica is draining, or has fewer slots


@dataclass(eq=False, slots=True)
class Lease:
    """A reserved slot.

    Attributes:
        endpoint: The replica's address, with the slot.
        resources: Releases the slot when closed.
        expired: True if no further request may use the slot.
        idle_timer: Releases the slot unless a request takes it first; None if it has never been idle.
    """

    endpoint: Endpoint
    resources: AsyncExitStack
    expired: bool = False
    idle_timer: asyncio.TimerHandle | None = None
    _reserved_s: float = field(init=False, default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def usable_s(self) -> float:
        """Seconds for which the slot may still be kept; 0 or less if it must be released."""
        if self.expired:
            return 0.0
        return self._reserved_s + MAX_AGE_S - asyncio.get_running_loop().time()

    def stop_idle_timer(self) -> None:
        """Marks the slot as not idle any more."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()


Reserve = Callable[[], Coroutine[Any, Any, Lease]]


class Leases:
    """The slots that one gateway replica holds in one pool.

    A request takes over an idle slot. If there is none, it gets whichever comes first: a new reservation, or the slot
    of a request that ends.

    Args:
        idle_timeout_s: How long an idle slot is kept; with 0, slots are never reused.

    Attributes:
        requests: Requests that hold a slot or wait for one.
    """

    def __init__(self, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._all: set[Lease] = set()
        self._idle: list[Lease] = []
        self._waiters: deque[asyncio.Future[Lease]] = deque()
        self._releases: set[asyncio.Task[None]] = set()
        self.requests = 0

    @property
    def has_idle(self) -> bool:
        """True if a request would get a slot at once."""
        return bool(self._idle)

    @property
    def held(self) -> int:
        """Slots that are held, idle ones included."""
        return len(self._all)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return max(0, self.requests - (len(self._all) - len(self._idle)))

    @asynccontextmanager
    async def hold(self, reserve: Reserve, url: str = "") -> AsyncIterator[Endpoint]:
        """Holds a slot for as long as the context lasts.

        Args:
            reserve: Makes a new reservation.
            url: The replica that is wanted; an idle slot of another one is not taken. Empty: any.

        Raises:
            GatewayError: As raised by `reserve`.
        """
        self.requests += 1
        try:
            lease = self._take_idle(url) or await self._wait_for_slot(reserve)
            try:
                yield lease.endpoint
            except BaseException:
                self._release(lease)  # the replica may still be working on the abandoned request
                raise
            self._pass_on(lease)
        finally:
            self.requests -= 1

    def forget(self, endpoint: Endpoint) -> None:
        """Expires all slots of a replica that did not answer, so that the next requests choose a replica again."""
        for lease in self._all:
            if lease.endpoint.url == endpoint.url:
                lease.expired = True
        for lease in [lease for lease in self._idle if lease.expired]:
            self._release_idle(lease)

    async def close(self) -> None:
        """Releases all idle slots."""
        for lease in list(self._idle):
            self._release_idle(lease)
        await asyncio.gather(*self._releases, return_exceptions=True)  # `_on_released` logs the errors

    def _take_idle(self, url: str) -> Lease | None:
        for place in range(len(self._idle) - 1, -1, -1):
            if not url or self._idle[place].endpoint.url == url:
                lease = self._idle.pop(place)
                lease.stop_idle_timer()
                return lease
        return None

    async def _wait_for_slot(self, reserve: Reserve) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        reserving = asyncio.create_task(reserve())
        reserving.add_done_callback(partial(self._on_reserved, waiter))
        if self._idle_timeout_s:
            self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())  # the slot arrived just as the client left
            raise
        finally:
            reserving.cancel()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _on_reserved(self, waiter: asyncio.Future[Lease], reserving: asyncio.Task[Lease]) -> None:
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
        """Hands a slot to the request that has waited longest, or keeps it for the next one."""
        keep_s = min(self._idle_timeout_s, lease.usable_s)
        waiter = next((waiter for waiter in self._waiters if not waiter.done()), None)
        if keep_s <= 0:
            self._release(lease)
        elif waiter is not None:
            waiter.set_result(lease)
        else:
            lease.idle_timer = asyncio.get_running_loop().call_later(keep_s, self._release_idle, lease)
            self._idle.append(lease)

    def _release_idle(self, lease: Lease) -> None:
        lease.stop_idle_timer()
        self._idle.remove(lease)
        self._release(lease)

    def _release(self, lease: Lease) -> None:
        """Releases a slot in the background."""
        self._all.discard(lease)
        task = asyncio.ensure_future(lease.resources.aclose())
        self._releases.add(task)
        task.add_done_callback(self._on_released)

    def _on_released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("could not release a slot", exc_info=error)
